"""One answer on its way to one client: all its choices, whole or in chunks."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator, Iterator, Sequence

from server.api import problem
from server.api.choices import Choice, Portion, interleaved, likeliest
from server.api.chunks import DONE, ChunkWriter, Envelope, completion, event
from server.api.history import Said
from server.api.schema import ChatRequest
from server.api.served import Served
from server.api.statistics import combined, measured, timings, usage
from server.api.translate import Asked
from server.engine.events import Committed
from server.errors import DuoError


class Reply:
    """Begin it, then take it whole or in chunks. Cancel it when nobody will read the rest."""

    def __init__(self, served: Served, body: ChatRequest, asked: Asked, choices: Sequence[Choice]) -> None:
        self._body = body
        self._asked = asked
        self._history = served.history
        self._choices = choices
        self._with_usage = bool(body.stream_options and body.stream_options.include_usage)
        self._id = f"chatcmpl-{secrets.token_hex(12)}"
        self._envelope = Envelope(self._id, int(time.time()), served.model.id, served.fingerprint)

    def cancel(self) -> None:
        for choice in self._choices:
            choice.generation.cancel()

    async def begin(self) -> None:
        """Wait until the engine takes the request up. Raises the error if it fails before that."""
        first = self._choices[0]
        first.see(await anext(first.events))

    async def whole(self) -> bytes:
        """The JSON of the completion."""
        await self.begin()
        async for choice, one in interleaved(self._choices):
            choice.see(one)
        self._remember()
        stats = combined([choice.stats() for choice in self._choices])
        extra = {"usage": usage(stats), **measured(stats, len(self._choices))}
        return completion(self._envelope, likeliest(self._choices, self._body.n), extra)

    async def chunks(self) -> AsyncIterator[bytes]:
        """The stream. A failure in its middle is its last event, without [DONE]."""
        writer = ChunkWriter(self._envelope, len(self._choices), usage=self._with_usage)
        try:
            for choice in self._choices:
                yield writer.role(choice.index)
            async for choice, one in interleaved(self._choices):
                try:
                    choice.see(one)
                except DuoError:  # it comes after what has been generated
                    for chunk in self._news(writer, choice):
                        yield chunk
                    raise
                if isinstance(one, Committed) and choice.generation.more:
                    continue  # to be told together with what is here already
                for chunk in self._news(writer, choice):
                    yield chunk
            self._remember()
            if self._with_usage:
                yield writer.usage(combined([choice.stats() for choice in self._choices]))
            yield DONE
        except DuoError as error:
            yield event(problem.body(error))
        except Exception as error:
            yield event(problem.body(problem.defect(f"the stream {self._id}", error)))

    def _remember(self) -> None:
        """All replies have ended: the next turn is likely to continue one of them."""
        for choice, request in zip(self._choices, self._asked.requests, strict=True):
            if not choice.stats().truncated:
                said = Said(
                    self._asked.text, self._asked.messages, request.prompt, *choice.said, request.salt
                )
                self._history.ended(said, settle=len(self._choices) == 1)

    def _news(self, writer: ChunkWriter, choice: Choice) -> Iterator[bytes]:
        """What a choice has to tell now; at its end, why it ended, and with the last one all figures."""
        portion = choice.portion()
        if portion.text:
            running = timings(choice.stats()) if self._body.timings_per_token else None
            yield writer.text(choice.index, portion, running)
            portion = Portion("")
        if choice.reason is not None:
            all_stats = [one.stats() for one in self._choices]
            last = all(one.reason is not None for one in self._choices)
            extra = measured(combined(all_stats), len(all_stats)) if last else {}
            yield writer.finish(choice, portion, extra)
