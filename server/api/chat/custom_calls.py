"""Convert calls of custom tools, which take a text instead of JSON, to chat completion format. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from server.api.custom_input import InputReader
from server.text.message import Arguments, CallStart, Piece, ToolCall


@dataclass(frozen=True, slots=True)
class CustomCallStart(CallStart):
    """The beginning of a call of a custom tool."""


@dataclass(frozen=True, slots=True)
class CustomInput(Arguments):
    """The next part of the input to a custom tool."""


class CustomCalls:
    """Converter of the custom tools' calls in one reply."""

    def __init__(self, names: frozenset[str]) -> None:
        """Begin a reply. `names`: the names of the request's custom tools."""
        self._names = names
        self._index = 0
        self._reader: InputReader | None = None  # reads the unfinished call

    def feed(self, pieces: Sequence[Piece], *, ended: bool) -> list[Piece]:
        """Return the reply's next pieces, with the arguments of custom tools replaced by their inputs.

        Input may be held back until its meaning is clear, at most until the call ends.

        Args:
            pieces: The next pieces of the reply.
            ended: True: the reply ends with these pieces.
        """
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
        """End the open call of a custom tool, if there is one, and yield the rest of its input."""
        reader, self._reader = self._reader, None
        if reader is not None:
            yield from self._input_pieces(reader.end())


def as_plain(piece: Piece) -> Piece:
    """Return a CustomInput as Arguments, which folded() can join; return other pieces unchanged."""
    return Arguments(piece.index, piece.text) if isinstance(piece, CustomInput) else piece


def call_json(call: ToolCall, names: frozenset[str]) -> dict[str, Any]:
    """Return a complete call in OpenAI's format.

    Args:
        call: The call. If its tool is custom, its arguments are the tool's input.
        names: Names of the custom tools.
    """
    if call.name not in names:
        return call.as_json
    return {"id": call.id, "type": "custom", "custom": {"name": call.name, "input": call.arguments}}
