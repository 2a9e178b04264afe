"""The pieces of a parsed reply: content, reasoning, tool calls. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias


@dataclass(frozen=True, slots=True)
class Content:
    """Text for the user; never empty."""

    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    """Thoughts; never empty."""

    text: str


@dataclass(frozen=True, slots=True)
class CallBegun:
    """index: number of the call in its reply, from 0. Its arguments follow before the next call begins."""

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class Arguments:
    """JSON text of a call's arguments; never empty. The pieces of a complete call are one JSON object, as the
    model wrote it."""

    index: int
    text: str


Piece: TypeAlias = Content | Reasoning | CallBegun | Arguments


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A whole call. arguments: JSON text."""

    id: str
    name: str
    arguments: str

    @property
    def as_json(self) -> dict[str, Any]:
        """In OpenAI's shape."""
        function = {"name": self.name, "arguments": self.arguments}
        return {"id": self.id, "type": "function", "function": function}


@dataclass(frozen=True, slots=True)
class Message:
    """A whole reply."""

    content: str = ""
    reasoning: str = ""
    calls: tuple[ToolCall, ...] = ()

    @property
    def extras(self) -> dict[str, Any]:
        """The fields beside content of a message in OpenAI's shape."""
        reasoning = {"reasoning_content": self.reasoning} if self.reasoning else {}
        return {**reasoning, "tool_calls": [c.as_json for c in self.calls]} if self.calls else reasoning


def coalesced(pieces: Sequence[Piece]) -> list[Piece]:
    """The pieces with neighbours of one kind joined."""
    if len(pieces) < 2:  # as with most tokens
        return list(pieces)
    joined: list[Piece] = []
    for _, neighbours in itertools.groupby(pieces, key=_kind):
        run = list(neighbours)
        first = run[0]
        if isinstance(first, CallBegun) or len(run) == 1:
            joined += run
        else:
            texts = [piece.text for piece in run if not isinstance(piece, CallBegun)]
            joined.append(replace(first, text="".join(texts)))
    return joined


def _kind(piece: Piece) -> tuple[type[Piece], int]:
    return type(piece), piece.index if isinstance(piece, Arguments) else 0


def folded(pieces: Iterable[Piece]) -> Message:
    """All pieces as one message."""
    content: list[str] = []
    reasoning: list[str] = []
    begun: list[CallBegun] = []
    arguments: list[list[str]] = []
    for piece in pieces:
        match piece:
            case Content(text):
                content.append(text)
            case Reasoning(text):
                reasoning.append(text)
            case CallBegun():
                begun.append(piece)
                arguments.append([])
            case Arguments(index, text):
                arguments[index].append(text)
    calls = (ToolCall(b.id, b.name, "".join(a)) for b, a in zip(begun, arguments, strict=True))
    return Message("".join(content), "".join(reasoning), tuple(calls))
