"""Pieces of a reply's message: content, reasoning and tool calls. Pure."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias


@dataclass(frozen=True, slots=True)
class Content:
    """A piece of the answer's text; never empty."""

    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    """A piece of the thoughts before the answer; never empty."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStart:
    """The beginning of a tool call. All of its arguments follow before the next call begins."""

    index: int  # number of the call in its reply, from 0
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class Arguments:
    """A piece of the JSON text of a call's arguments; never empty.

    Unless the call was broken off, its pieces joined are one JSON object, as the model wrote it.
    """

    index: int
    text: str


Piece: TypeAlias = Content | Reasoning | CallStart | Arguments


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A complete tool call."""

    id: str
    name: str
    arguments: str  # JSON text

    @property
    def as_json(self) -> dict[str, Any]:
        """Return the call in OpenAI's shape."""
        function = {"name": self.name, "arguments": self.arguments}
        return {"id": self.id, "type": "function", "function": function}


@dataclass(frozen=True, slots=True)
class Message:
    """A whole reply."""

    content: str = ""
    reasoning: str = ""
    calls: tuple[ToolCall, ...] = ()

    @property
    def as_json(self) -> dict[str, Any]:
        """Return the message in OpenAI's shape, as a client sends it back."""
        return {"role": "assistant", "content": self.content, **self.extras}

    @property
    def extras(self) -> dict[str, Any]:
        """Return the fields of the message in OpenAI's shape, without role and content."""
        reasoning = {"reasoning_content": self.reasoning} if self.reasoning else {}
        return {**reasoning, "tool_calls": [c.as_json for c in self.calls]} if self.calls else reasoning


def coalesced(pieces: Sequence[Piece]) -> list[Piece]:
    """Join consecutive pieces of one kind."""
    if len(pieces) < 2:  # the usual case
        return list(pieces)
    joined: list[Piece] = []
    for _, neighbours in itertools.groupby(pieces, key=_kind_of):
        run = list(neighbours)
        texts = [piece.text for piece in run if not isinstance(piece, CallStart)]
        joined += [replace(run[0], text="".join(texts))] if texts else run
    return joined


def _kind_of(piece: Piece) -> tuple[type[Piece], int]:
    return type(piece), piece.index if isinstance(piece, Arguments) else 0


def folded(pieces: Iterable[Piece]) -> Message:
    """Join all pieces of a reply into its message."""
    begun: list[CallStart] = []
    texts: defaultdict[tuple[type[Piece], int], list[str]] = defaultdict(list)
    for piece in pieces:
        if isinstance(piece, CallStart):
            begun.append(piece)
        else:
            texts[_kind_of(piece)].append(piece.text)
    calls = (ToolCall(call.id, call.name, "".join(texts[Arguments, call.index])) for call in begun)
    return Message("".join(texts[Content, 0]), "".join(texts[Reasoning, 0]), tuple(calls))
