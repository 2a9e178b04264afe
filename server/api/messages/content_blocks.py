"""Build content blocks of the Messages API from a reply's pieces, and the events about them. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import orjson

from server.api.sealed import UNSIGNED, holding
from server.text.message import Arguments, CallBegun, Content, Piece, Reasoning

Json: TypeAlias = dict[str, Any]


class BlockEvents:
    """Blocks of one message, which grow one after the other. Each step returns events."""

    def __init__(self, *, omits: bool) -> None:
        """Begin a message; `omits`: thoughts are only in their signature."""
        self._omits = omits
        self._thoughts = ""  # of the block that grows, if they are omitted
        self._n = 0  # blocks that have ended
        self._open = ""  # type of the one that grows

    def feed(self, pieces: Sequence[Piece]) -> Iterator[Json]:
        for piece in pieces:
            match piece:
                case Reasoning(text):
                    begun = {"type": "thinking", "thinking": "", "signature": ""}
                    delta = None if self._omits else {"type": "thinking_delta", "thinking": text}
                    self._thoughts += text if self._omits else ""
                    yield from self._continue_block(begun, delta)
                case Content(text):
                    yield from self._continue_block(
                        {"type": "text", "text": ""}, {"type": "text_delta", "text": text}
                    )
                case CallBegun(_, id, name):
                    yield from self._begin_block({"type": "tool_use", "id": id, "name": name, "input": {}})
                case Arguments(_, text):
                    yield self._delta({"type": "input_json_delta", "partial_json": text})

    def summary(self, text: str) -> Iterator[Json]:
        """Yield the events of a block that is a summary of the conversation."""
        yield from self._begin_block(compaction_block(None))
        yield self._delta({"type": "compaction_delta", "content": text or None})
        yield from self.end()

    def end(self) -> Iterator[Json]:
        """Yield the events that end the open block, if there is one."""
        if self._open == "thinking":
            signature = holding(self._thoughts) if self._omits else UNSIGNED
            self._thoughts = ""
            yield self._delta({"type": "signature_delta", "signature": signature})
        if self._open:
            yield {"type": "content_block_stop", "index": self._n}
            self._n, self._open = self._n + 1, ""

    def _continue_block(self, begun: Json, delta: Json | None) -> Iterator[Json]:
        """Yield the events of more of the open block, or of a new one for another type."""
        if self._open != begun["type"]:
            yield from self._begin_block(begun)
        if delta is not None:
            yield self._delta(delta)

    def _begin_block(self, block: Json) -> Iterator[Json]:
        yield from self.end()
        self._open = block["type"]
        yield {"type": "content_block_start", "index": self._n, "content_block": block}

    def _delta(self, delta: Json) -> Json:
        return {"type": "content_block_delta", "index": self._n, "delta": delta}


def compaction_block(summary: str | None) -> Json:
    """Return the block that stands for a conversation from then on; null content stands for nothing."""
    return {"type": "compaction", "content": summary or None}


def blocks_of(pieces: Sequence[Piece], *, omits: bool) -> list[Json]:
    """Return the blocks of a whole reply; the input of a call that was cut off is {}.

    Args:
        pieces: the reply, neighbours of one kind joined.
        omits: thoughts are in their signature only.
    """
    blocks: list[Json] = []
    for piece in pieces:
        match piece:
            case Reasoning(text):
                shown, signature = ("", holding(text)) if omits else (text, UNSIGNED)
                blocks.append({"type": "thinking", "thinking": shown, "signature": signature})
            case Content(text):
                blocks.append({"type": "text", "text": text})
            case CallBegun(_, id, name):
                blocks.append({"type": "tool_use", "id": id, "name": name, "input": {}})
            case Arguments(_, text):
                blocks[-1]["input"] = _whole_object(text)
    return blocks


def _whole_object(text: str) -> orjson.Fragment | Json:
    """Return the JSON text of an object unchanged; {} if it broke off."""
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError:
        return {}
    return orjson.Fragment(text)
