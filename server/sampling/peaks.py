"""Find the largest logits of a row without sorting it. Pure.

A long row is folded into lines of equal length, one below the other. One pass finds the largest logit of each
column, as fast as memory can be read. Then only few columns are searched. The logits after the last whole
line form one more column.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import numpy.typing as npt

Logits = npt.NDArray[np.float32] | npt.NDArray[np.float64]
Ids = npt.NDArray[np.int64]

_IMPOSSIBLE = -1e38  # logit below that of any possible token
_UNFOLDED_ROW = 40_000  # maximum logits of a row that is not folded
_ENOUGH = 2_048  # minimum column maxima from which mass() makes its estimate
_SPREAD = 8  # logits in the sample of likeliest() for each token sought


class Peaks:
    """A row of logits folded into lines of equal length, and the largest logit of each column."""

    maxima: npt.NDArray[Any]

    __slots__ = ("_highest", "_length", "_lines", "maxima", "row", "top")

    def __init__(self, row: Logits) -> None:
        """Fold a row of shape (vocab size,) into lines; the row itself is not changed."""
        self.row = row
        n = len(row)
        n_lines = 1 if n <= _UNFOLDED_ROW else (1 << n.bit_length() // 2) >> 3  # an eighth of the square root
        self._lines, rest = _fold_row(row, n_lines)
        self._length = length = n // n_lines
        if n_lines == 1:
            self.maxima = row
        else:
            self.maxima = np.empty(length + (len(rest) > 0), row.dtype)
            np.maximum.reduce(self._lines, 0, out=self.maxima[:length])
            if len(rest):
                self.maxima[length] = np.maximum.reduce(rest)
        self._highest = int(self.maxima.argmax())
        self.top = float(self.maxima[self._highest])

    def best(self) -> int:
        """Return the id of the largest logit; on a tie, the id of any of them."""
        return self._best_of(self._highest)

    def lowest_best(self) -> int:
        """Return the id of the largest logit; on a tie, the lowest id."""
        if self.maxima is self.row:
            return self._highest
        top, others = self.maxima[self._highest], self.maxima[self._highest + 1 :]
        if not len(others) or others[others.argmax()] != top:  # mostly
            return self.best()
        return min(map(self._best_of, (self.maxima == top).nonzero()[0].tolist()))

    def runner_up(self, token: int) -> int:
        """Return the id of the largest logit outside the column of `token`."""
        return self.runners_up(token, 1)[0]

    def runners_up(self, token: int, n: int) -> list[int]:
        """Return the ids of the n largest column maxima, without the column of `token`.

        There must be more than n columns.
        """
        others = self.maxima.copy()
        found: list[int] = []
        column = token % self._length if token < self._lines.size else self._length
        for _ in range(n):
            others[column] = -np.inf
            column = int(others.argmax())
            found.append(self._best_of(column))
        return found

    def mass(self) -> float:
        """Estimate the sum of exp(logit - top) over the row from a few thousand column maxima.

        The estimate is too small for flat rows, and nearly right for other rows.
        """
        values, n_lines = self.maxima, len(self.maxima) // _ENOUGH
        if n_lines > 1:
            lines, rest = _fold_row(values, n_lines)
            values = np.concatenate((np.maximum.reduce(lines, 0), rest))
        weights = values - self.maxima[self._highest]
        return float(np.add.reduce(np.exp(weights, out=weights)))

    def above(self, threshold: float) -> Ids:
        """Return the ascending ids of all logits of at least `threshold` minus a rounding error."""
        floor = _rounded_down(threshold)
        (columns,) = (self.maxima >= floor).nonzero()
        if self.maxima is not self.row and 4 * len(columns) > len(self.maxima):
            return (self.row >= floor).nonzero()[0]
        return self._ids_within(columns, floor)

    def few_above(self, threshold: float, most: int) -> Ids | None:
        """Return the ids that above() returns; None if more than `most` columns have a logit that large."""
        floor = _rounded_down(threshold)
        (columns,) = (self.maxima >= floor).nonzero()
        return self._ids_within(columns, floor) if len(columns) <= most else None

    def likeliest(self, k: int) -> Ids:
        """Return the ascending ids of the k likeliest tokens, and usually of a few more tokens.

        These are all tokens with logits of at least the k-th largest logit in a sample of the row. Impossible
        tokens (logit below _IMPOSSIBLE) are left out.
        """
        values: Logits = self.maxima if 3 * k <= 2 * len(self.maxima) else self.row
        n_lines = len(values) // (_SPREAD * k)
        if n_lines > 1:
            values = _fold_row(values, n_lines)[0].max(0)
        k = min(k, len(values))
        threshold = float(np.partition(values, len(values) - k)[len(values) - k])
        return self.above(max(threshold, _IMPOSSIBLE))

    def _ids_within(self, columns: Ids, floor: np.float32) -> Ids:
        """Return the ids of all logits of at least `floor`. `columns`: all columns with such logits."""
        if self.maxima is self.row:
            return columns
        if len(columns) == 1 and columns[0] < self._length:  # mostly, where the model is sure
            column = columns[0]
            return (self._lines[:, column] >= floor).nonzero()[0] * self._length + column
        ragged = len(columns) > 0 and columns[-1] == self._length
        inside = columns[:-1] if ragged else columns
        (at,) = (self._lines.take(inside, 1) >= floor).ravel().nonzero()
        ids = (_line_starts(*self._lines.shape) + inside).take(at)
        if not ragged:
            return ids
        n_folded = self._lines.size
        return np.concatenate((ids, (self.row[n_folded:] >= floor).nonzero()[0] + n_folded))

    def _best_of(self, column: int) -> int:
        """Return the id of a column's largest logit; on a tie, of any of the largest."""
        if self.maxima is self.row:
            return column
        if column < self._length:
            return int(self._lines[:, column].argmax()) * self._length + column
        return self._lines.size + int(self.row[self._lines.size :].argmax())


def _rounded_down(threshold: float) -> np.float32:
    """Return a float32 slightly below the threshold, so that rounding cannot exclude a logit."""
    return np.float32(threshold - 2e-7 * abs(threshold))


def _fold_row(row: npt.NDArray[Any], n_lines: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Return two views of a row: its lines, (n_lines, length), and the logits after the last whole line."""
    n = len(row) // n_lines * n_lines
    return row[:n].reshape(n_lines, -1), row[n:]


@functools.lru_cache(64)
def _line_starts(n_lines: int, length: int) -> Ids:
    """Return the first id of each line, in shape (n_lines, 1)."""
    return np.arange(0, n_lines * length, length)[:, None]
