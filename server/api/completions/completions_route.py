"""POST /v1/completions: OpenAI's legacy route, with llama-server's names too."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from server.api.choices import Portion, ReplyChoice, submit
from server.api.completing import CompletionAnswer
from server.api.completions.completion_chunks import OBJECT, TextChunks, text_json
from server.api.completions.completion_request import CompletionRequest
from server.api.completions.prompts import Prompted, prompted
from server.api.delivery import deliver
from server.api.incoming import aside, check_model, read
from server.api.logprobs_json import LegacyLogprobs
from server.api.served import Served
from server.text.message import Content


async def create(request: Request) -> Response:
    """Answers with a completion, or with a stream of chunks once the request is admitted."""
    served: Served = request.state.served
    body = await read(request, CompletionRequest)
    check_model(served, body.model)
    prompts = await aside(request, prompted, served, body)
    choices = submit(served, body, [one for prompt in prompts for one in prompt.requests])
    return await deliver(request, TextAnswer(served, body, prompts, choices), stream=body.stream)


class TextAnswer(CompletionAnswer):
    """The answer to a legacy completion request."""

    _object = OBJECT

    def __init__(
        self,
        served: Served,
        body: CompletionRequest,
        prompts: Sequence[Prompted],
        choices: Sequence[ReplyChoice],
    ) -> None:
        super().__init__("cmpl", served, body, choices)
        self._prompts = prompts
        echoed = prompts if body.echo else ()
        self._echoes = [prompt.text for prompt in echoed for _ in range(body.n_generated)]

    @cached_property
    def _writer(self) -> TextChunks:
        return TextChunks(self._envelope, len(self._choices), usage=self._body.with_usage)

    def _whole_choice(self, choice: ReplyChoice, portion: Portion) -> dict[str, Any]:
        before = self._echoes[choice.index] if self._echoes else ""
        return text_json(portion, LegacyLogprobs(), before)

    def _opening(self) -> Iterator[bytes]:
        for index, echo in enumerate(self._echoes):
            yield from self._writer.portion(index, Portion((Content(echo),)))

    def _remember(self) -> None:
        for prompt, choices in zip(self._prompts, self._by_prompt, strict=True):
            prompt.remember(self._history, choices)
