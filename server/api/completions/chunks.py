"""The JSON of legacy completions, whole and in chunks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import orjson

from server.api.chat.chunks import Envelope, event
from server.api.choices import Choice, Portion
from server.api.logprobs import LegacyLogprobs

OBJECT = "text_completion"


def completion(envelope: Envelope, told: Iterable[tuple[str, Choice]], extra: dict[str, Any]) -> bytes:
    """A whole answer: choices, each with the text that its own goes on from, numbered in this order."""
    choices: list[dict[str, Any]] = []
    for index, (before, choice) in enumerate(told):
        portion = choice.portion()
        choices.append(_choice(index, before, portion, LegacyLogprobs(), choice.reason))
    return orjson.dumps(envelope(OBJECT, choices, **extra))


class CompletionWriter:
    """The chunks of one streamed answer. What is constant is serialised once."""

    def __init__(self, envelope: Envelope, n_choices: int, *, usage: bool) -> None:
        """usage: every chunk but the last carries "usage": null, as OpenAI does when it is asked for."""
        self._envelope = envelope
        self._extra: dict[str, Any] = {"usage": None} if usage else {}
        self._logprobs = [LegacyLogprobs() for _ in range(n_choices)]
        self._frames = [self._frame(index) for index in range(n_choices)]

    def text(self, index: int, portion: Portion, timings: dict[str, Any] | None = None) -> bytes:
        if portion.logprobs is None and portion.plain and timings is None:
            head, tail = self._frames[index]
            return head + orjson.dumps(portion.text) + tail
        extra = {} if timings is None else {"timings": timings}
        return self._chunk(_choice(index, "", portion, self._logprobs[index], None), **extra)

    def finish(self, choice: Choice, rest: Portion, extra: dict[str, Any]) -> bytes:
        """rest: tokens that are no part of any text."""
        logprobs = self._logprobs[choice.index]
        return self._chunk(_choice(choice.index, "", rest, logprobs, choice.reason), **extra)

    def usage(self, usage: dict[str, Any]) -> bytes:
        return event(self._envelope(OBJECT, [], usage=usage))

    def _chunk(self, choice: dict[str, Any], **extra: Any) -> bytes:
        return event(self._envelope(OBJECT, [choice], **self._extra, **extra))

    def _frame(self, index: int) -> tuple[bytes, bytes]:
        marked = _choice(index, "\x00", Portion(), self._logprobs[index], None)
        head, tail = self._chunk(marked).split(b'"\\u0000"')
        return head, tail


def _choice(
    index: int, before: str, portion: Portion, logprobs: LegacyLogprobs, reason: str | None
) -> dict[str, Any]:
    choice: dict[str, Any] = {"index": index, "text": before + portion.text}
    choice["logprobs"] = None if portion.logprobs is None else logprobs.told(portion.logprobs)
    if portion.tokens is not None:
        choice["tokens"] = portion.tokens
    if portion.sources is not None:
        choice["sources"] = portion.sources
    return {**choice, "finish_reason": reason}
