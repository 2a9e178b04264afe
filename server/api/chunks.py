"""The JSON of chat completions, whole and in chunks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import orjson

from server.api.choices import Choice, Portion
from server.api.statistics import usage
from server.engine.events import Stats

DONE = b"data: [DONE]\n\n"


def event(payload: Any) -> bytes:
    """One server-sent event."""
    return b"data: " + orjson.dumps(payload) + b"\n\n"


class Envelope:
    """What every chunk of a reply, or the whole of it, repeats."""

    def __init__(self, id: str, created: int, model: str, fingerprint: str) -> None:
        self._about = {"id": id, "created": created, "model": model, "system_fingerprint": fingerprint}

    def __call__(self, object: str, choices: Sequence[Any], **extra: Any) -> dict[str, Any]:
        return {"object": object, **self._about, "choices": choices, **extra}


def completion(envelope: Envelope, choices: Iterable[Choice], extra: dict[str, Any]) -> bytes:
    """A whole reply. The choices are told in this order and numbered anew."""
    told: list[dict[str, Any]] = []
    for index, choice in enumerate(choices):
        portion = choice.portion()
        message = {"role": "assistant", "content": portion.text, "refusal": None}
        told.append({"index": index, "message": message, **_beside(portion), "finish_reason": choice.reason})
    return orjson.dumps(envelope("chat.completion", told, **extra))


class ChunkWriter:
    """The chunks of one streamed reply. What is constant is serialised once."""

    def __init__(self, envelope: Envelope, n_choices: int, *, usage: bool) -> None:
        """usage: every chunk but the last carries "usage": null, as OpenAI does when it is asked for."""
        self._envelope = envelope
        self._extra: dict[str, Any] = {"usage": None} if usage else {}
        self._frames = [self._frame(index) for index in range(n_choices)]

    def role(self, index: int) -> bytes:
        return self._chunk(_choice(index, {"role": "assistant", "content": None}, Portion(""), None))

    def text(self, index: int, portion: Portion, timings: dict[str, Any] | None = None) -> bytes:
        if portion.logprobs is None and portion.tokens is None and timings is None:
            head, tail = self._frames[index]
            return head + orjson.dumps(portion.text) + tail
        extra = {} if timings is None else {"timings": timings}
        return self._chunk(_choice(index, {"content": portion.text}, portion, None), **extra)

    def finish(self, choice: Choice, rest: Portion, extra: dict[str, Any]) -> bytes:
        """rest: tokens that are no part of any text."""
        return self._chunk(_choice(choice.index, {}, rest, choice.reason), **extra)

    def usage(self, stats: Stats) -> bytes:
        return event(self._envelope("chat.completion.chunk", [], usage=usage(stats)))

    def _chunk(self, choice: dict[str, Any], **extra: Any) -> bytes:
        return event(self._envelope("chat.completion.chunk", [choice], **self._extra, **extra))

    def _frame(self, index: int) -> tuple[bytes, bytes]:
        head, tail = self._chunk(_choice(index, {"content": "\x00"}, Portion(""), None)).split(b'"\\u0000"')
        return head, tail


def _choice(index: int, delta: dict[str, Any], portion: Portion, reason: str | None) -> dict[str, Any]:
    return {"index": index, "delta": delta, **_beside(portion), "finish_reason": reason}


def _beside(portion: Portion) -> dict[str, Any]:
    beside: dict[str, Any] = {"logprobs": portion.logprobs}
    if portion.tokens is not None:
        beside["tokens"] = portion.tokens
    return beside
