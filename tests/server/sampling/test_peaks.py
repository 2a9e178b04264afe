"""Peaks: what is high in a row, without looking at all of it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from server.sampling.peaks import Peaks
from tests.support import probability

Row = npt.NDArray[np.float32]

SIZES = [1, 2, 7, 64, 100, 5_003, 40_001, 65_536, 150_000]  # the larger ones are folded


def row_of(n: int, scale: float) -> Row:
    row = (np.random.default_rng(n).standard_normal(n) * scale).astype(np.float32)
    row[:: max(2, n // 50)] = -np.inf
    row[0] = row[-1] = 1.5
    return row


@pytest.mark.parametrize("scale", [0.0, 0.1, 3.0])
@pytest.mark.parametrize("n", SIZES)
def test_peaks_find_top_and_threshold(n: int, scale: float):
    row = row_of(n, scale)
    peaks = Peaks(row)
    assert (peaks.lowest_best(), peaks.top) == (int(row.argmax()), float(row.max()))
    assert row[peaks.best()] == row.max()
    for threshold in [*row[:20:3].tolist(), float(row.max()), 0.0, 2.5, 6.0, 1e9, -1e9, float("-inf")]:
        assert peaks.above(threshold).tolist() == np.flatnonzero(row >= np.float32(threshold)).tolist() or (
            set(np.flatnonzero(row >= np.float32(threshold)))
            <= set(peaks.above(threshold))
            <= set(np.flatnonzero(row >= np.nextafter(np.float32(threshold), np.float32(-np.inf))))
        )


@pytest.mark.parametrize("k", [1, 2, 40, 300, 10**6])
@pytest.mark.parametrize("n", SIZES)
def test_likeliest_tokens_are_complete(n: int, k: int):
    row = row_of(n, 3.0)
    found = Peaks(row).likeliest(k)
    wanted = np.sort(row[np.isfinite(row)])[-k:]
    assert np.isfinite(row[found]).all()
    assert np.sort(row[found])[-len(wanted) :].tolist() == wanted.tolist()
    assert len(found) < 4 * k + 4
    assert (np.diff(found) > 0).all()


@pytest.mark.parametrize("n", SIZES[2:])
def test_runner_up_and_top_share(n: int):
    row = row_of(n, 0.1)
    row[[0, -1]] = 0.0
    first, second = n // 2, n - 1
    row[first], row[second] = 30.0, 29.0
    peaks = Peaks(row)
    assert (peaks.best(), peaks.runner_up(first), peaks.runner_up(second)) == (first, second, first)
    assert 1.0 / peaks.mass() == pytest.approx(probability(row, first), abs=1e-4)


@pytest.mark.parametrize("n", [5_003, 150_000])
def test_a_few_above_a_threshold_or_none(n: int):
    row = np.zeros(n, np.float32)
    row[[3, n // 3, n - 1]] = 5.0
    peaks = Peaks(row)
    found = peaks.few_above(4.0, 3)
    assert found is not None
    assert found.tolist() == [3, n // 3, n - 1]
    assert peaks.few_above(4.0, 2) is None


@pytest.mark.parametrize("n", SIZES[4:])
def test_lowest_id_wins_any_column(n: int):
    rng = np.random.default_rng(n)
    for n_equal in (1, 2, 3, 40) * 5:
        row = row_of(n, 1.0)
        row[rng.choice(n, n_equal, replace=False)] = 9.0
        assert Peaks(row).lowest_best() == row.argmax()


@pytest.mark.parametrize("n", [5_000, 50_000])
def test_a_row_of_equals(n: int):
    peaks = Peaks(np.zeros(n, np.float32))
    assert (peaks.lowest_best(), peaks.top, len(peaks.above(0.0)), len(peaks.above(0.1))) == (0, 0.0, n, 0)
