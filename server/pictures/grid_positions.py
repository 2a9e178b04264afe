"""Translate the engine's positions to llama.cpp's for models with M-RoPE.

In these models a picture advances llama.cpp's position by less than its number of rows. The engine counts
rows, since each row takes a KV cell. So this module remembers where the pictures of each sequence are.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from server.errors import BackendError
from server.llama.backend import Batch, Embeddings, Logits, OverModel, ReadsRows

_HEAD = struct.Struct("<8sI")
_MARK = b"duo grid"
_SPAN = struct.Struct("<5I")


@dataclass(frozen=True, slots=True)
class GridSpan:
    """A picture in a sequence."""

    start: int  # rows of the sequence before the picture
    n_rows: int
    position: int  # llama.cpp's position of the picture's first row
    n_positions: int  # positions from there to the row after the picture
    n_read: int  # number of rows, from the picture's first on, that are in the sequence

    @property
    def rows_to_end(self) -> int:
        """Return the number of rows before and in the picture, as far as the sequence holds them."""
        return self.start + self.n_read

    @property
    def position_behind(self) -> int:
        """Return llama.cpp's position of the row after the picture."""
        return self.position + self.n_positions


class GridPositions(OverModel):
    """Wraps a model with M-RoPE, which it does not own, and implements ReadsRows."""

    def __init__(self, backend: ReadsRows) -> None:
        super().__init__(backend)
        self._backend = backend
        self._spans: list[list[GridSpan]] = [[] for _ in range(backend.n_seqs)]
        self.length, self.intact, self.close = self._row_count, self._is_intact, backend.close

    def start(self, batch: Batch) -> Callable[[], Logits]:
        if any(self._spans[seq] for seq in batch.seqs):
            places = zip(batch.seqs, batch.positions, strict=True)
            batch = replace(batch, positions=[self._position_of(*place) for place in places])
        return self._backend.start(batch)

    def read_rows(self, batch: Batch, given: Embeddings) -> None:
        seq, start = batch.seqs[0], batch.positions[0] - given.first
        if given.grid is None:
            raise BackendError("a picture without positions")
        spans = _spans_before(self._spans[seq], start)
        position = _place_in(spans, start)
        self._backend.read_rows(replace(batch, positions=[position] * len(batch)), given)
        n_rows, n_read = given.grid.places.shape[1], given.first + len(batch)
        spans.append(GridSpan(start, n_rows, position, given.grid.n_positions, n_read))
        for each in batch.shared.get(0, (seq,)):
            self._spans[each] = spans[:]

    def trim(self, seq: int, length: int) -> None:
        spans = _spans_before(self._spans[seq], length)
        self._backend.trim(seq, self._position_of(seq, length))
        self._spans[seq] = spans

    def save(self, seq: int) -> bytes:
        """Return the model's state; if the sequence has pictures, their spans are written in front of it."""
        state, spans = self._backend.save(seq), self._spans[seq]
        told = (_SPAN.pack(one.start, one.n_rows, one.position, one.n_positions, one.n_read) for one in spans)
        return b"".join((_HEAD.pack(_MARK, len(spans)), *told, state)) if spans else state

    def load(self, seq: int, data: bytes) -> None:
        spans, at = list[GridSpan](), 0
        if data.startswith(_MARK):
            at = _HEAD.size + _SPAN.size * _HEAD.unpack_from(data)[1]
            spans = [GridSpan(*told) for told in _SPAN.iter_unpack(data[_HEAD.size : at])]
        self._backend.load(seq, data[at:])
        self._spans[seq] = spans

    def copy(self, source: int, target: int, start: int, end: int) -> None:
        theirs = [span for span in _spans_before(self._spans[source], end) if span.start >= start]
        spans = _spans_before(self._spans[target], start) + theirs
        self._backend.copy(source, target, _place_in(spans, start), _place_in(spans, end))
        self._spans[target] = spans

    def shift(self, seq: int, start: int, end: int) -> None:
        """Raise BackendError: llama.cpp moves no cells of such models (can_shift)."""
        raise BackendError("this model's sequences cannot be shifted")

    def _row_count(self, seq: int) -> int:
        n, spans = self._backend.length(seq), self._spans[seq]
        if not spans:
            return n
        last = spans[-1]
        return last.rows_to_end + max(0, n - last.position_behind)

    def _is_intact(self, seq: int, length: int) -> bool:
        return self._backend.intact(seq, self._position_of(seq, length))

    def _position_of(self, seq: int, length: int) -> int:
        """Return llama.cpp's position of the row that follows a sequence's first `length` rows."""
        return _place_in(self._spans[seq], length)


def _place_in(spans: Sequence[GridSpan], length: int) -> int:
    for span in reversed(spans):
        if length > span.start:
            return span.position_behind + max(0, length - span.rows_to_end)
    return length


def _spans_before(spans: Sequence[GridSpan], length: int) -> list[GridSpan]:
    """Return the pictures in the first `length` rows. Raises BackendError if one continues after them."""
    kept = [span for span in spans if span.start < length]
    if kept and length < kept[-1].rows_to_end:
        raise BackendError("a part of a picture cannot be removed")
    return kept
