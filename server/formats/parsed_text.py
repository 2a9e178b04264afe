"""Collect the pieces that a reader finds in a reply, up to a stop string. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from server.formats.spans import ContentSpans
from server.text.guard import GUARD, unguarded
from server.text.indentation import Indentation
from server.text.message import CallStart, Content, Piece, Reasoning
from server.text.stops import StopStrings


class ParsedText:
    """Base of MessageReader: the text read so far and the pieces found. Positions count guards (guard.py)."""

    def __init__(self, stops: Sequence[str], n_indent: int, *, plain: bool) -> None:
        """Begin a reply.

        Args:
            stops: Strings in the content that end the reply; a stop string and later text are not emitted.
            n_indent: Minimum indentation, in spaces, of each line of content but the first; a line with less
                ends the reply.
            plain: True if all of the text is content.
        """
        self.n_parsed = 0  # characters whose meaning is certain
        self.n_thought = 0  # index after the thoughts and their markers
        self.outdented = False  # the reply ended at a line with too little indentation
        self.content = ContentSpans(plain=plain)  # which characters are content
        self._stops = StopStrings(stops)
        self._indentation = Indentation(n_indent)
        self.may_stop = bool(self._stops) or n_indent > 0
        self._pieces: list[Piece] = []
        self._buffer: str = ""  # the text from n_parsed on
        self._n_plain = 0  # characters at the buffer's beginning that are known to be plain text
        self._blank: int = 0  # white space before a supposed call; it is text if there is no call
        self._ended = self._cut = False  # cut: the model would have gone on

    @property
    def stop_string(self) -> str | None:
        """Return the stop string that ended the reply, None if none did."""
        return self._stops.found

    @property
    def stopped(self) -> bool:
        """True once the reply has ended, even if the model still generates."""
        return self.outdented or self._stops.found is not None

    def _drop(self, n: int) -> None:
        self._buffer, self._blank = self._buffer[n:], 0
        self._n_plain = max(0, self._n_plain - n)
        self.n_parsed += n

    def _emit_content(self, n: int) -> None:
        text = self._buffer[:n]
        if text and self.may_stop:
            text, self.outdented = self._indentation.feed(text)
        if text:
            self._pieces.append(Content(text))
            self.content.add(self.n_parsed, self.n_parsed + len(text))
            self._drop(len(text))

    def _emit_up_to(self, n: int, *, marker: bool, keeps_blank: bool) -> None:
        """Emit the first n characters as content, up to a stop string that is complete or may still form.

        Args:
            n: Number of characters that are certainly content.
            marker: True if a marker follows them.
            keeps_blank: True to emit white space at their end.
        """
        text = self._buffer[:n]
        n = self._stops.n_emittable(text, whole=marker or self._ended)
        if not self.stopped and not keeps_blank:
            n = min(n, len(text.rstrip()))
        self._emit_content(n)
        if self.stopped:
            self._buffer = ""

    def _emit_thought(self, n: int) -> None:
        if n:
            self._pieces.append(Reasoning(self._buffer[:n]))
            self._drop_thought(n)

    def _drop_thought(self, n: int) -> None:
        self._drop(n)
        self.n_thought = self.n_parsed

    def _take_pieces(self) -> list[Piece]:
        """Return the pieces collected since the last call."""
        pieces, self._pieces = self._pieces, []
        return list(map(_unguarded_piece, pieces)) if pieces else pieces


def _unguarded_piece(piece: Piece) -> Piece:
    if isinstance(piece, CallStart):
        return replace(piece, name=unguarded(piece.name), id=unguarded(piece.id))
    return replace(piece, text=unguarded(piece.text)) if GUARD in piece.text else piece
