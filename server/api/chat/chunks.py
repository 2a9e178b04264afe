"""The JSON of chat completions, whole and in chunks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import orjson

from server.api.choices import Choice, Portion
from server.text.message import Arguments, CallBegun, Content, Message, Piece, Reasoning, folded

DONE = b"data: [DONE]\n\n"
NO_LOGPROBS = b'"logprobs":null'


def event(payload: Any) -> bytes:
    """One server-sent event."""
    return b"data: " + orjson.dumps(payload) + b"\n\n"


class Envelope:
    """What every chunk of a reply, or the whole of it, repeats."""

    def __init__(self, id: str, created: int, model: str, fingerprint: str) -> None:
        self._about = {"id": id, "created": created, "model": model, "system_fingerprint": fingerprint}

    def __call__(self, object: str, choices: Sequence[Any], **extra: Any) -> dict[str, Any]:
        return {"object": object, **self._about, "choices": choices, **extra}


def completion(envelope: Envelope, choices: Iterable[tuple[Choice, Portion]], extra: dict[str, Any]) -> bytes:
    """A whole reply. The choices, each with all that it has to tell, come in this order and are numbered
    anew."""
    told = [
        {
            "index": index,
            "message": _message(folded(portion.pieces)),
            **_beside(portion),
            "finish_reason": choice.reason,
        }
        for index, (choice, portion) in enumerate(choices)
    ]
    return orjson.dumps(envelope("chat.completion", told, **extra))


def _message(reply: Message) -> dict[str, Any]:
    """content is null in a reply that does nothing but call tools."""
    content = None if reply.calls and not reply.content else reply.content
    message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
    if reply.reasoning:
        message["reasoning_content"] = reply.reasoning
    if reply.calls:
        message["tool_calls"] = [
            {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": c.arguments}}
            for c in reply.calls
        ]
    return message


class ChunkWriter:
    """The chunks of one streamed reply. What is constant is serialised once."""

    def __init__(self, envelope: Envelope, n_choices: int, *, usage: bool) -> None:
        """usage: every chunk but the last carries "usage": null, as OpenAI does when it is asked for."""
        self._envelope = envelope
        self._extra: dict[str, Any] = {"usage": None} if usage else {}
        self._frames = [self._frame(index) for index in range(n_choices)]

    def role(self, index: int) -> bytes:
        return self._chunk(_choice(index, {"role": "assistant", "content": None}, Portion(), None))

    def pieces(self, index: int, portion: Portion, timings: dict[str, Any] | None = None) -> Iterator[bytes]:
        """A chunk for each piece. The last has tokens, sources and timings; logprobs are with the content."""
        *before, last = portion.pieces
        bearer = next((piece for piece in reversed(portion.pieces) if isinstance(piece, Content)), last)
        for piece in before:
            yield self._piece(index, piece, Portion(logprobs=portion.logprobs if piece is bearer else None))
        logprobs = portion.logprobs if last is bearer else None
        yield self._piece(index, last, replace(portion, pieces=(), logprobs=logprobs), timings)

    def _piece(
        self, index: int, piece: Piece, beside: Portion, timings: dict[str, Any] | None = None
    ) -> bytes:
        if beside.plain and timings is None and isinstance(piece, Content):
            head, tail = self._frames[index]
            if beside.logprobs is not None:
                tail = tail.replace(NO_LOGPROBS, NO_LOGPROBS[:-4] + orjson.dumps(beside.logprobs), 1)
            return head + orjson.dumps(piece.text) + tail
        extra = {} if timings is None else {"timings": timings}
        return self._chunk(_choice(index, _delta(piece), beside, None), **extra)

    def finish(self, choice: Choice, rest: Portion, extra: dict[str, Any]) -> bytes:
        """rest: tokens that are no part of any text."""
        return self._chunk(_choice(choice.index, {}, rest, choice.reason), **extra)

    def usage(self, usage: dict[str, Any]) -> bytes:
        return event(self._envelope("chat.completion.chunk", [], usage=usage))

    def _chunk(self, choice: dict[str, Any], **extra: Any) -> bytes:
        return event(self._envelope("chat.completion.chunk", [choice], **self._extra, **extra))

    def _frame(self, index: int) -> tuple[bytes, bytes]:
        head, tail = self._chunk(_choice(index, {"content": "\x00"}, Portion(), None)).split(b'"\\u0000"')
        return head, tail


def _delta(piece: Piece) -> dict[str, Any]:
    match piece:
        case Content(text):
            return {"content": text}
        case Reasoning(text):
            return {"reasoning_content": text}
        case CallBegun(index, id, name):
            function = {"name": name, "arguments": ""}
            return {"tool_calls": [{"index": index, "id": id, "type": "function", "function": function}]}
        case Arguments(index, text):
            return {"tool_calls": [{"index": index, "function": {"arguments": text}}]}


def _choice(index: int, delta: dict[str, Any], portion: Portion, reason: str | None) -> dict[str, Any]:
    return {"index": index, "delta": delta, **_beside(portion), "finish_reason": reason}


def _beside(portion: Portion) -> dict[str, Any]:
    beside: dict[str, Any] = {"logprobs": portion.logprobs}
    if portion.tokens is not None:
        beside["tokens"] = portion.tokens
    if portion.sources is not None:
        beside["sources"] = portion.sources
    return beside
