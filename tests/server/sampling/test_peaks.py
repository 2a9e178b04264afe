"""Peaks: what is high in a row, without looking at all of it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from server.sampling.peaks import Peaks

Row = npt.NDArray[np.float32]

SIZES = [1, 2, 7, 64, 100, 4_096, 5_003, 150_000]


def row_of(n: int, scale: float) -> Row:
    row = (np.random.default_rng(n).standard_normal(n) * scale).astype(np.float32)
    row[:: max(2, n // 50)] = -np.inf
    row[0] = row[-1] = 1.5
    return row


@pytest.mark.parametrize("scale", [0.0, 0.1, 3.0])
@pytest.mark.parametrize("n", SIZES)
def test_the_largest_logit_and_all_above_a_threshold(n: int, scale: float):
    row = row_of(n, scale)
    peaks = Peaks(row)
    assert (peaks.best(), peaks.top) == (int(row.argmax()), float(row.max()))
    for threshold in [*row[:20:3].tolist(), float(row.max()), 0.0, 2.5, 6.0, 1e9, -1e9, float("-inf")]:
        assert peaks.above(threshold).tolist() == np.flatnonzero(row >= np.float32(threshold)).tolist() or (
            set(np.flatnonzero(row >= np.float32(threshold)))
            <= set(peaks.above(threshold))
            <= set(np.flatnonzero(row >= np.nextafter(np.float32(threshold), np.float32(-np.inf))))
        )


@pytest.mark.parametrize("k", [1, 2, 40, 300, 10**6])
@pytest.mark.parametrize("n", SIZES)
def test_the_likeliest_are_all_there_and_nothing_impossible(n: int, k: int):
    row = row_of(n, 3.0)
    found = Peaks(row).likeliest(k)
    wanted = np.sort(row[np.isfinite(row)])[-k:]
    assert np.isfinite(row[found]).all()
    assert np.sort(row[found])[-len(wanted) :].tolist() == wanted.tolist()
    assert len(found) < 4 * k + 4
    assert (np.diff(found) > 0).all()


def test_a_row_of_equals():
    peaks = Peaks(np.zeros(5_000, np.float32))
    assert (peaks.best(), peaks.top, len(peaks.above(0.0)), len(peaks.above(0.1))) == (0, 0.0, 5_000, 0)
