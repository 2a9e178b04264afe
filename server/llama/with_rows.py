"""A model that keeps its recent hidden rows, for heads on other devices."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

import numpy as np

from server.llama.backend import Backend, Batch, Hidden, Logits, OverModel, SentRows
from server.llama.target_rows import RowSource

# Maximum latest rows that are kept of each sequence, and sent to a head when it begins: 6 MB at a width of
# 4096. With a toy model's head, 0.454 guesses per token were accepted; with 32 rows, 0.442.
KEPT_ROWS = 256
LARGEST = float(np.finfo(np.float16).max)


@dataclass(slots=True)
class _Tail:
    """The hidden rows of a sequence's latest positions, without gaps."""

    first: int = 0  # position of the first row
    rows: list[SentRows] = field(default_factory=list[SentRows])

    @property
    def end(self) -> int:
        return self.first + len(self.rows)

    def add_row(self, position: int, row: SentRows) -> None:
        self.cut_rows(position)
        if self.end != position:
            self.first, self.rows = position, []
        self.rows.append(row)
        if len(self.rows) > 2 * KEPT_ROWS:
            self.first += KEPT_ROWS
            del self.rows[:KEPT_ROWS]

    def cut_rows(self, length: int) -> None:
        """Remove the rows of positions >= length."""
        self.first = min(self.first, length)
        del self.rows[length - self.first :]


class _Recorder:
    """The latest rows of all sequences, from the layers that one kind of head reads."""

    def __init__(self, source: RowSource, n_seqs: int) -> None:
        self.source = source
        self.tails = [_Tail() for _ in range(n_seqs)]
        source.begin_reading()

    def record_batch(self, batch: Batch) -> None:
        """Keep the rows of this batch, which was decoded last."""
        n = len(batch)
        first = max(0, n - KEPT_ROWS) if batch.seqs.count(batch.seqs[0]) == n else 0
        rows = _as_sent(self.source.take_rows(n)[first:])
        for i in range(first, n):
            for seq in batch.shared.get(i, (batch.seqs[i],)):
                self.tails[seq].add_row(batch.positions[i], rows[i - first])

    def copy(self, source: int, target: int, start: int, end: int) -> None:
        theirs, own = self.tails[source], self.tails[target]
        own.cut_rows(start)
        if own.end < max(start, theirs.first):
            own.first, own.rows = min(theirs.first, end), []
        own.rows += theirs.rows[own.end - theirs.first : max(0, end - theirs.first)]


class WithRows(OverModel):
    """A Backend and RowGiver over a model. Does not own it.

    While no kind of head needs rows, calls go directly to the model.
    """

    def __init__(self, backend: Backend, source: Callable[[tuple[int, ...]], RowSource]) -> None:
        """Begin without recording.

        Args:
            backend: The model.
            source: Returns the source of the rows of these layers, as target_rows.row_source() does.
        """
        super().__init__(backend)
        self._backend, self._source = backend, source
        self._recorders: dict[tuple[int, ...], _Recorder] = {}
        self.intact, self.save, self.close = backend.intact, backend.save, backend.close
        self._route()

    def keep_rows(self, kinds: Collection[tuple[int, ...]]) -> None:
        for kind in self._recorders.keys() - kinds:
            self._recorders.pop(kind).source.end_reading()
        for kind in kinds:
            if kind not in self._recorders:
                self._recorders[kind] = _Recorder(self._source(kind), self.n_seqs)
        self._route()

    def recent_rows(self, kind: tuple[int, ...], seq: int, start: int, end: int) -> tuple[int, SentRows]:
        recorder = self._recorders.get(kind)
        tail = recorder.tails[seq] if recorder and seq >= 0 else _Tail()
        first = max(start, tail.first, end - KEPT_ROWS)
        found = tail.rows[first - tail.first : max(0, end - tail.first)]
        return first, np.stack(found) if found else np.empty((0, 0), np.float16)

    def _route(self) -> None:
        """Route calls through the recorders if there are any, else directly to the model."""
        model = self._backend
        self.start, self.decode = model.start, model.decode
        self.trim, self.copy, self.shift, self.load = model.trim, model.copy, model.shift, model.load
        if self._recorders:
            self.start, self.decode = self._start, super().decode
            self.trim, self.copy, self.shift, self.load = self._trim, self._copy, self._shift, self._load

    def _start(self, batch: Batch) -> Callable[[], Logits]:
        started = self._backend.start(batch)

        def finish() -> Logits:
            logits = started()
            for recorder in self._recorders.values():
                recorder.record_batch(batch)
            return logits

        return finish

    def _trim(self, seq: int, length: int) -> None:
        self._backend.trim(seq, length)
        for recorder in self._recorders.values():
            recorder.tails[seq].cut_rows(length)

    def _copy(self, source: int, target: int, start: int, end: int) -> None:
        self._backend.copy(source, target, start, end)
        for recorder in self._recorders.values():
            recorder.copy(source, target, start, end)

    def _shift(self, seq: int, start: int, end: int) -> None:
        self._backend.shift(seq, start, end)
        self._forget(seq)

    def _load(self, seq: int, data: bytes) -> None:
        self._backend.load(seq, data)
        self._forget(seq)

    def _forget(self, seq: int) -> None:
        for recorder in self._recorders.values():
            recorder.tails[seq] = _Tail()


def _as_sent(rows: Hidden) -> SentRows:
    """Convert rows to float16. Clip values beyond its range, which occur in a few channels of a model."""
    return rows.clip(-LARGEST, LARGEST).astype(np.float16)
