"""POST /v1/completions: a text goes on. OpenAI's legacy route, and with its names llama-server's."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Sequence
from functools import cached_property

from starlette.requests import Request
from starlette.responses import Response

from server.api.answer import Answer
from server.api.chat.chunks import DONE, Envelope
from server.api.choices import Choice, Portion, likeliest, submit
from server.api.completions.chunks import CompletionWriter, completion
from server.api.completions.prompts import Prompted, prompted
from server.api.completions.schema import CompletionRequest
from server.api.delivery import deliver
from server.api.history import Said
from server.api.incoming import aside, check_model, read
from server.api.served import Served
from server.api.statistics import combined, measured, summed, timings, usage
from server.engine.events import Stats
from server.text.message import Content


async def create(request: Request) -> Response:
    """Answer with a completion, or open a stream of chunks once the request is admitted."""
    served: Served = request.state.served
    body = await read(request, CompletionRequest)
    check_model(served, body.model)
    prompts = await aside(request, prompted, served, body)
    choices = submit(served, body, [one for prompt in prompts for one in prompt.requests])
    return await deliver(request, Completion(served, body, prompts, choices), stream=body.stream)


class Completion(Answer):
    """To a legacy completion request. The replies to its first prompt come first."""

    def __init__(
        self,
        served: Served,
        body: CompletionRequest,
        prompts: Sequence[Prompted],
        choices: Sequence[Choice],
    ) -> None:
        super().__init__(f"cmpl-{secrets.token_hex(12)}", choices)
        self._body = body
        self._prompts = prompts
        self._history = served.history
        self._envelope = Envelope(self._id, int(time.time()), served.model.id, served.fingerprint)

    @cached_property
    def _writer(self) -> CompletionWriter:
        return CompletionWriter(self._envelope, len(self._choices), usage=self._body.with_usage)

    def _by_prompt(self) -> Iterator[tuple[Prompted, Sequence[Choice]]]:
        n = self._body.n_generated
        for i, prompt in enumerate(self._prompts):
            yield prompt, self._choices[i * n : (i + 1) * n]

    def _stats(self) -> Stats:
        return summed([combined([one.stats() for one in choices]) for _, choices in self._by_prompt()])

    def _all(self) -> bytes:
        stats = self._stats()
        told = [
            (prompt.text if self._body.echo else "", choice)
            for prompt, choices in self._by_prompt()
            for choice in likeliest(choices, self._body.n)
        ]
        extra = {"usage": usage(stats), **measured(stats, len(self._choices))}
        return completion(self._envelope, told, extra)

    def _opening(self) -> Iterator[bytes]:
        if self._body.echo:
            for prompt, choices in self._by_prompt():
                for choice in choices:
                    yield self._writer.text(choice.index, Portion((Content(prompt.text),)))

    def _news(self, choice: Choice) -> Iterator[bytes]:
        """With the last ending come all figures."""
        portion = choice.portion()
        if portion.text:
            running = timings(choice.stats()) if self._body.timings_per_token else None
            yield self._writer.text(choice.index, portion, running)
            portion = Portion()
        if choice.reason is not None:
            last = all(one.reason is not None for one in self._choices)
            extra = measured(self._stats(), len(self._choices)) if last else {}
            yield self._writer.finish(choice, portion, extra)

    def _closing(self) -> Iterator[bytes]:
        if self._body.with_usage:
            yield self._writer.usage(usage(self._stats()))
        yield DONE

    def _remember(self) -> None:
        for prompt, choices in self._by_prompt():
            for choice, request in zip(choices, prompt.requests, strict=True):
                if prompt.plain and not choice.stats().truncated:
                    said = Said(prompt.text, [], request.prompt, *choice.said, request.salt)
                    self._history.ended(said, settle=False)
