"""POST /v1/completions: OpenAI's legacy route, which also accepts llama-server's field names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from server.api.choices import Portion, ReplyChoice
from server.api.completing import CompletionAnswer
from server.api.completions.completion_request import CompletionRequest
from server.api.delivery import deliver
from server.api.logprobs_json import LegacyLogprobs
from server.api.services import Services
from server.api.stages.prompted import Prompted
from server.api.stages.submit import prepared_texts
from server.api.stages.validate import check_model, on_prompt_thread, read
from server.text.detokenize import spelled
from server.text.message import Content, Piece, folded


async def create(request: Request, services: Services) -> Response:
    """Answer a legacy completion."""
    body = await read(request, CompletionRequest)
    check_model(body.model, services.model)
    prompts = await on_prompt_thread(request, prepared_texts, services, body)
    return await deliver(request, TextAnswer(services, body, prompts), stream=body.stream)


class TextAnswer(CompletionAnswer):
    """An answer in the format of OpenAI's legacy completions."""

    _prefix = "cmpl"
    _objects = ("text_completion", "text_completion")

    def __init__(self, services: Services, body: CompletionRequest, prompts: Sequence[Prompted]) -> None:
        super().__init__(services, body, prompts)
        self._reports_prompt = body.reports_prompt
        self._requests = [request for prompt in prompts for request in prompt.requests]
        echoed = prompts if body.echo else ()
        self._echoes = [prompt.text for prompt in echoed for _ in prompt.requests]
        told = prompts if body.reports_prompt else ()
        unseen = [_n_unseen(services, prompt) for prompt in told for _ in prompt.requests]
        self._logprobs = [LegacyLogprobs(n) for n in unseen or [0] * len(self._choices)]

    def _whole_reply(self, choice: ReplyChoice, pieces: Sequence[Piece]) -> dict[str, Any]:
        before = self._echoes[choice.index] if self._echoes else ""
        return {"text": before + folded(pieces).content}

    def _delta(self, pieces: Sequence[Piece]) -> dict[str, Any]:
        return {"text": folded(pieces).content}

    def _logprobs_json(self, index: int, logprobs: dict[str, Any]) -> dict[str, Any]:
        entries = logprobs["content"]
        if self._reports_prompt:
            first = self._requests[index].prompt[0]
            entries = [*self._choices[index].prompt_logprobs(first), *entries]
        return self._logprobs[index].next_entries(entries)

    def _opening_events(self) -> Iterator[bytes]:
        for index, echo in enumerate(self._echoes):
            yield self._piece_chunk(index, Content(echo), Portion(), {})


def _n_unseen(services: Services, prompt: Prompted) -> int:
    """Return the number of characters that tokenising has added before a prompt's text.

    They are BOS and the leading space of SentencePiece. Return 0 if the tokens do not end with the prompt's
    text.
    """
    whole = spelled(services.vocabulary, prompt.requests[0].prompt)
    return len(whole) - len(prompt.text) if whole.endswith(prompt.text) else 0
