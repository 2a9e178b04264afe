"""Where a row of logits is high: one pass over the vocabulary, then looks at a few blocks of it. Pure."""

from __future__ import annotations

import functools

import numpy as np
import numpy.typing as npt

Logits = npt.NDArray[np.float32] | npt.NDArray[np.float64]
Ids = npt.NDArray[np.int64]

_IMPOSSIBLE = -1e38  # and less: no model says that of a token that it can say


class Peaks:
    """The largest logit of every block of a row, which tells in which blocks something can be found."""

    def __init__(self, row: Logits) -> None:
        """row: (vocab size,), at least one logit; not written to."""
        self.row = row
        self._width = _width(len(row))
        self._maxima = np.maximum.reduceat(row, _starts(len(row), self._width))
        self._highest = int(self._maxima.argmax())
        self.top = float(self._maxima[self._highest])

    def best(self) -> int:
        """The id of the largest logit, the lowest among equals."""
        start = self._highest * self._width
        return start + int(self.row[start : start + self._width].argmax())

    def above(self, threshold: float) -> Ids:
        """The ids of all logits of at least this, ascending; perhaps some a rounding error below it."""
        floor = np.float32(threshold - 2e-7 * abs(threshold))
        (blocks,) = (self._maxima >= floor).nonzero()
        if 4 * len(blocks) > len(self._maxima):
            return (self.row >= floor).nonzero()[0]
        if len(blocks) == 1:
            start = int(blocks[0]) * self._width
            return (self.row[start : start + self._width] >= floor).nonzero()[0] + start
        return self._within(blocks, floor)

    def _within(self, blocks: Ids, floor: np.float32) -> Ids:
        width, n_whole = self._width, len(self.row) // self._width
        whole = self.row[: n_whole * width].reshape(n_whole, width)
        ragged = len(blocks) > 0 and blocks[-1] == n_whole
        inside = blocks[:-1] if ragged else blocks
        (at,) = (whole.take(inside, axis=0) >= floor).ravel().nonzero()
        ids = inside.take(at // width) * width + at % width
        if not ragged:
            return ids
        return np.concatenate((ids, (self.row[n_whole * width :] >= floor).nonzero()[0] + n_whole * width))

    def likeliest(self, k: int) -> Ids:
        """At least the k likeliest tokens, ascending, and not many more; none that is impossible. The k-th
        largest of the blocks' maxima has k logits of at least its size."""
        values = self._maxima if 3 * k <= 2 * len(self._maxima) else self.row
        k = min(k, len(values))
        threshold = float(np.partition(values, len(values) - k)[len(values) - k])
        return self.above(max(threshold, _IMPOSSIBLE))


def _width(n: int) -> int:
    """Of a block: near the square root, so that there are about as many blocks as a block has logits."""
    return 1 << n.bit_length() // 2


@functools.lru_cache(64)
def _starts(n: int, width: int) -> Ids:
    return np.arange(0, n, width)
