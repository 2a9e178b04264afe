"""Write chat completions' calls of custom tools, which take a text instead of JSON. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from server.api.custom_input import InputReader
from server.text.message import Arguments, CallStart, Piece, ToolCall


@dataclass(frozen=True, slots=True)
class CustomCallStart(CallStart):
    """A call of a custom tool begins."""


@dataclass(frozen=True, slots=True)
class CustomInput(Arguments):
    """The next part of the input to a custom tool."""


class CustomCalls:
    """Converts the calls of custom tools in one reply."""

    def __init__(self, names: frozenset[str]) -> None:
        """Begin a reply to a request with custom tools of these names."""
        self._names = names
        self._index = 0
        self._reader: InputReader | None = None  # reads the unfinished call

    def feed(self, pieces: Sequence[Piece], *, ended: bool) -> list[Piece]:
        """Return the pieces; inputs of custom tools replace their arguments. `ended`: the reply has ended."""
        found: list[Piece] = []
        for piece in pieces:
            if isinstance(piece, Arguments) and self._reader is not None:
                found += self._input_pieces(self._reader.feed(piece.text))
                continue
            found += self._end_call()
            if isinstance(piece, CallStart) and piece.name in self._names:
                self._index, self._reader = piece.index, InputReader()
                piece = CustomCallStart(piece.index, piece.id, piece.name)
            found.append(piece)
        return [*found, *self._end_call()] if ended else found

    def _input_pieces(self, text: str) -> Iterator[Piece]:
        if text:
            yield CustomInput(self._index, text)

    def _end_call(self) -> Iterator[Piece]:
        """Yield the rest of the unfinished call's input, if there is one."""
        reader, self._reader = self._reader, None
        if reader is not None:
            yield from self._input_pieces(reader.end())


def as_plain(piece: Piece) -> Piece:
    """Return a CustomInput as Arguments, which folded() can join; return other pieces unchanged."""
    return Arguments(piece.index, piece.text) if isinstance(piece, CustomInput) else piece


def call_json(call: ToolCall, names: frozenset[str]) -> dict[str, Any]:
    """Return a whole call in OpenAI's shape; the arguments of a custom tool's call are its input."""
    if call.name not in names:
        return call.as_json
    return {"id": call.id, "type": "custom", "custom": {"name": call.name, "input": call.arguments}}
