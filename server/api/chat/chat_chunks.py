"""The JSON of chat completions, whole and in chunks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import orjson

from server.api.choices import Portion, ReplyChoice
from server.api.completing import MARK, ChunkWriter, Envelope, beside
from server.text.message import Arguments, CallBegun, Content, Message, Piece, Reasoning

NO_LOGPROBS = b'"logprobs":null'


def message_json(reply: Message) -> dict[str, Any]:
    """content is null in a reply of tool calls only."""
    content = None if reply.calls and not reply.content else reply.content
    return {"role": "assistant", "content": content, "refusal": None, **reply.extras}


class ChatChunks(ChunkWriter):
    def __init__(self, envelope: Envelope, n_choices: int, *, usage: bool) -> None:
        super().__init__("chat.completion.chunk", envelope, usage=usage)
        self._frames = [self._frame(_choice(i, {"content": MARK}, Portion(), None)) for i in range(n_choices)]

    def role(self, index: int) -> bytes:
        return self._chunk(_choice(index, {"role": "assistant", "content": None}, Portion(), None))

    def portion(self, index: int, portion: Portion, timings: dict[str, Any] | None = None) -> Iterator[bytes]:
        """One chunk per piece. The last has tokens, sources and timings; logprobs are with the content."""
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

    def finish(self, choice: ReplyChoice, rest: Portion, extra: dict[str, Any]) -> bytes:
        return self._chunk(_choice(choice.index, {}, rest, choice.reason), **extra)


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
    told = {"index": index, "delta": delta, "logprobs": portion.logprobs, **beside(portion)}
    return {**told, "finish_reason": reason}
