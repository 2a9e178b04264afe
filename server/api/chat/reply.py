"""One answer on its way to one client: all its choices, whole or in chunks."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

from server.api.answer import Answer
from server.api.chat.chunks import DONE, ChunkWriter, Envelope, completion
from server.api.chat.schema import ChatRequest
from server.api.choices import Choice, Portion, likeliest
from server.api.history import History, Said
from server.api.served import Served
from server.api.statistics import combined, measured, timings, usage
from server.api.translate import Asked


class Reply(Answer):
    """To a chat completion request."""

    def __init__(self, served: Served, body: ChatRequest, asked: Asked, choices: Sequence[Choice]) -> None:
        super().__init__(f"chatcmpl-{secrets.token_hex(12)}", choices)
        self._body = body
        self._asked = asked
        self._history = served.history
        self._envelope = Envelope(self._id, int(time.time()), served.model.id, served.fingerprint)

    @cached_property
    def _writer(self) -> ChunkWriter:
        return ChunkWriter(self._envelope, len(self._choices), usage=self._body.with_usage)

    def _all(self) -> bytes:
        portions = {choice.index: choice.portion() for choice in self._choices}
        best = [(choice, portions[choice.index]) for choice in likeliest(self._choices, self._body.n)]
        stats = combined([choice.stats() for choice in self._choices])
        extra = {"usage": self._usage(), **measured(stats, len(self._choices))}
        return completion(self._envelope, best, extra)

    def _usage(self) -> dict[str, Any]:
        """Once everything has been told."""
        stats = combined([choice.stats() for choice in self._choices])
        return usage(stats, sum(choice.n_reasoning for choice in self._choices))

    def _opening(self) -> Iterator[bytes]:
        for choice in self._choices:
            yield self._writer.role(choice.index)

    def _closing(self) -> Iterator[bytes]:
        if self._body.with_usage:
            yield self._writer.usage(self._usage())
        yield DONE

    def _remember(self) -> None:
        remember(self._history, self._asked, self._choices)

    def _news(self, choice: Choice) -> Iterator[bytes]:
        """With the last ending come all figures."""
        portion = choice.portion()
        if portion.pieces:
            running = timings(choice.stats()) if self._body.timings_per_token else None
            yield from self._writer.pieces(choice.index, portion, running)
            portion = Portion()
        if choice.reason is not None:
            all_stats = [one.stats() for one in self._choices]
            last = all(one.reason is not None for one in self._choices)
            extra = measured(combined(all_stats), len(all_stats)) if last else {}
            yield self._writer.finish(choice, portion, extra)


def remember(history: History, asked: Asked, choices: Sequence[Choice]) -> None:
    """All replies have ended: the next turn is likely to continue one of them."""
    for choice, request in zip(choices, asked.requests, strict=True):
        if not choice.stats().truncated:
            said = Said(asked.text, asked.messages, request.prompt, *choice.said, request.salt, asked.setting)
            history.ended(said, settle=len(choices) == 1)
