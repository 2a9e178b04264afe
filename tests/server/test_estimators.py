"""What learns, against plain sums over what it was told."""

from __future__ import annotations

from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.estimators import Mean, Median, Ratio, Smoothed

VALUES = st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=60)


@given(VALUES, st.floats(-1e3, 1e3), st.integers(0, 9))
def test_short_mean_averages_all(values: list[float], first: float, count: int):
    mean = Mean(first, count, window=100)
    for value in values:
        mean.observe(value)
    assert mean.value == pytest.approx(fmean([first] * count + values), abs=1e-6)


def test_full_mean_follows_change():
    mean = Mean(0.0, 4, window=10)
    for _ in range(100):
        mean.observe(0.0)
    mean.observe(1.0)
    assert mean.value == pytest.approx(0.1)
    for _ in range(40):
        mean.observe(1.0)
    assert mean.value > 0.95


@given(VALUES, st.floats(0.01, 0.99))
def test_smoothed_value_weighs_as_told(values: list[float], weight: float):
    known, unknown = Smoothed(weight, 5.0), Smoothed(weight)
    expected, begun = 5.0, values[0]
    for i, value in enumerate(values):
        known.observe(value)
        unknown.observe(value)
        expected = (1 - weight) * expected + weight * value
        begun = (1 - weight) * begun + weight * value if i else value
    assert known.value == pytest.approx(expected, abs=1e-6)
    assert unknown.value == pytest.approx(begun, abs=1e-6)


def test_observation_weight_may_vary():
    smoothed = Smoothed(0.1)
    assert not smoothed.is_known
    smoothed.observe(0.0)
    assert smoothed.is_known
    smoothed.observe(1.0)
    assert smoothed.value == pytest.approx(0.1)
    smoothed.observe(1.1, 0.5)
    assert smoothed.value == pytest.approx(0.6)


def test_a_median_forgets_what_was_disturbed():
    latest = Median(5)
    assert latest.value == 0.0
    for value in (1.0, 1.0, 90.0, 1.0, 90.0):
        latest.observe(value)
    assert latest.value == 1.0
    for _ in range(3):
        latest.observe(2.0)
    assert latest.value == 2.0


@given(st.lists(st.tuples(st.floats(0.0, 9.0), st.floats(0.01, 9.0)), min_size=1, max_size=50))
def test_ratio_sums_fade(pairs: list[tuple[float, float]]):
    ratio = Ratio(0.9)
    assert ratio.value == 0.0
    for over, under in pairs:
        ratio.observe(over, under)
    fading = [0.9**i for i in range(len(pairs))]
    over = sum(w * o for w, (o, _) in zip(fading, reversed(pairs), strict=True))
    under = sum(w * u for w, (_, u) in zip(fading, reversed(pairs), strict=True))
    assert ratio.value == pytest.approx(over / under)
    assert ratio.weight == pytest.approx(sum(fading))
