"""Wrap a model so that it reads pictures: their rows of a batch are decoded from embeddings, not tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

import numpy as np

from server.errors import BackendError
from server.llama.backend import PICTURE_IDS, Batch, Embeddings, Logits, OverModel, ReadsRows
from server.pictures.picture import PicturePart
from server.pictures.registry import Pictures

Place: TypeAlias = tuple[PicturePart, int]
"""A position of a picture: the part, and the index in the part."""
NO_PLACE: Place = PicturePart(), 0


class WithPictures(OverModel):
    """Wraps a model, which it does not own, and implements Backend."""

    def __init__(self, backend: ReadsRows, pictures: Pictures) -> None:
        super().__init__(backend)
        self._backend = backend
        self._pictures = pictures
        self.trim = backend.trim
        self.save, self.load, self.copy = backend.save, backend.load, backend.copy
        self.shift, self.close = backend.shift, backend.close

    def start(self, batch: Batch) -> Callable[[], Logits]:
        if max(batch.tokens, default=0) < PICTURE_IDS:
            return self._backend.start(batch)
        places = [self._place_of(token) for token in batch.tokens]
        found: list[Logits] = []
        for start, end in _runs(batch, places):
            part, first = _part_of(batch, start, end), places[start]
            if first is not None and first[0].rows is not None:
                self._read(part, *first)
                continue
            part.tokens = [
                token if place is None else place[0].tokens[place[1]]
                for token, place in zip(part.tokens, places[start:end], strict=True)
            ]
            logits = self._backend.start(part)()
            if len(logits):
                found.append(logits.copy())  # the next decode overwrites them
        whole = np.concatenate(found) if found else np.empty((0, self.vocab.size), np.float32)
        return lambda: whole

    def _place_of(self, token: int) -> Place | None:
        """Return the place of this id in a picture, None if the id is a token. Raises BackendError."""
        if token < PICTURE_IDS:
            return None
        if (picture := self._pictures.with_id(token)) is None:
            raise BackendError("a picture of this prompt is not known any more")
        return picture.places[token]

    def _read(self, batch: Batch, part: PicturePart, first: int) -> None:
        """Evaluate a batch of consecutive rows of a picture's part, from index `first` of the part on."""
        assert part.rows is not None
        step = len(batch) if part.whole else self.n_batch
        for start in range(0, len(batch), step):
            end = min(start + step, len(batch))
            rows = part.rows[first + start : first + end].copy()
            given = Embeddings(rows, part.whole, part.grid, first + start)
            self._backend.read_rows(_part_of(batch, start, end), given)


def _runs(batch: Batch, places: Sequence[Place | None]) -> Iterator[tuple[int, int]]:
    """Yield (start, end) of each run of rows to decode at once.

    A run has either tokens, or consecutive rows of one part of a picture in one sequence.

    Args:
        batch: The batch.
        places: For each row, its place in a picture, if any.
    """
    start = 0
    for end in range(1, len(places) + 1):
        if end == len(places) or not _goes_on(batch, places, end):
            yield start, end
            start = end


def _goes_on(batch: Batch, places: Sequence[Place | None], i: int) -> bool:
    """Return True if one decode may hold both row i and row i - 1."""
    (before, n_before), (part, n) = places[i - 1] or NO_PLACE, places[i] or NO_PLACE
    if before.rows is None or part.rows is None:
        return before.rows is part.rows
    return part is before and n == n_before + 1 and batch.seqs[i] == batch.seqs[i - 1]


def _part_of(batch: Batch, start: int, end: int) -> Batch:
    """Return rows start to end of a batch, as a batch."""
    shared = {row - start: seqs for row, seqs in batch.shared.items() if start <= row < end}
    return Batch(
        batch.tokens[start:end],
        batch.positions[start:end],
        batch.seqs[start:end],
        batch.wanted[start:end],
        shared,
        stable=batch.stable,
    )
