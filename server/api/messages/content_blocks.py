"""Build content blocks of the Messages API from a reply's pieces, and the events about them. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import orjson

from server.api.sealed import UNSIGNED, encode_thoughts
from server.text.message import Arguments, CallStart, Content, Piece, Reasoning

Json: TypeAlias = dict[str, Any]


class BlockEvents:
    """Builder of one message's content blocks. Its methods yield events; only the last block grows."""

    def __init__(self, *, omits: bool) -> None:
        """Begin a message. If `omits`, thoughts are sent only in encoded form, as their block's signature."""
        self._omits = omits
        self._thoughts = ""  # thoughts of the open block, if they are not shown
        self._n = 0  # number of blocks that have ended
        self._open = ""  # type of the open block, "" if none is open

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
                case CallStart(_, id, name):
                    yield from self._begin_block({"type": "tool_use", "id": id, "name": name, "input": {}})
                case Arguments(_, text):
                    yield self._delta({"type": "input_json_delta", "partial_json": text})

    def summary(self, text: str) -> Iterator[Json]:
        """Yield the events of a block with `text`, a summary of the conversation; "": there is no summary."""
        yield from self._begin_block(compaction_block(None))
        yield self._delta({"type": "compaction_delta", "content": text or None})
        yield from self.end()

    def end(self) -> Iterator[Json]:
        """Yield the events that end the open block, if there is one."""
        if self._open == "thinking":
            signature = encode_thoughts(self._thoughts) if self._omits else UNSIGNED
            self._thoughts = ""
            yield self._delta({"type": "signature_delta", "signature": signature})
        if self._open:
            yield {"type": "content_block_stop", "index": self._n}
            self._n, self._open = self._n + 1, ""

    def _continue_block(self, begun: Json, delta: Json | None) -> Iterator[Json]:
        """Yield the event of `delta`, unless it is None.

        If the open block is of another type than `begun`, first begin the block `begun`.
        """
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
    """Return a block that replaces the conversation before it by this summary; its content may be null."""
    return {"type": "compaction", "content": summary or None}


def blocks_of(pieces: Sequence[Piece], *, omits: bool) -> list[Json]:
    """Return the blocks of a whole reply; the input of an incomplete call is {}.

    Args:
        pieces: The reply; adjacent pieces are of different kinds.
        omits: True: send thoughts only in encoded form, as their block's signature.
    """
    blocks: list[Json] = []
    for piece in pieces:
        match piece:
            case Reasoning(text):
                shown, signature = ("", encode_thoughts(text)) if omits else (text, UNSIGNED)
                blocks.append({"type": "thinking", "thinking": shown, "signature": signature})
            case Content(text):
                blocks.append({"type": "text", "text": text})
            case CallStart(_, id, name):
                blocks.append({"type": "tool_use", "id": id, "name": name, "input": {}})
            case Arguments(_, text):
                blocks[-1]["input"] = _whole_object(text)
    return blocks


def _whole_object(text: str) -> orjson.Fragment | Json:
    """Return an object's JSON text unchanged, {} if the text is incomplete."""
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError:
        return {}
    return orjson.Fragment(text)
