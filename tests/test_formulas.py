"""The formulas: the table they were first written down with, optima by brute force, and each other."""

from __future__ import annotations

import itertools

import pytest

from tests.formulas import (
    Scheme,
    flat,
    limit,
    per_step,
    run_length,
    speedup,
    staircase,
    with_outages,
)

SPEEDS = (2, 4, 8, 12, 20)
GRID = list(itertools.product((0.5, 0.7, 0.9), SPEEDS))
CURVE = staircase({0: 10.0, 3: 12.0, 7: 15.0})


def closed(a: float, r: int) -> float:
    """Return the speed-up by the closed form for v = 1, no latency and a whole r.

    A run begins with a plain step: 1. Meanwhile the drafter drafts r tokens. The run goes on if the first of
    them is right: a. Each later step verifies r - 1 tokens and draws one more; the run outlives it if all r
    are right: a^r. Hence 1 + a + a a^r + … = 1 + a/(1-a^r).
    """
    return run_length(a) / (1 + a / (1 - a**r))


def test_the_table_for_a_of_80_percent():
    assert [round(speedup(Scheme(0.8, r)), 2) for r in SPEEDS] == [1.55, 2.12, 2.55, 2.69, 2.76]


@pytest.mark.parametrize(("a", "r"), GRID)
def test_sum_of_steps_is_closed_form(a: float, r: int):
    assert speedup(Scheme(a, r)) == pytest.approx(closed(a, r), rel=1e-6)
    assert 1 <= closed(a, r) <= limit(a, r) <= run_length(a)


def test_staircase_passes_measured_times():
    assert [CURVE(k) for k in (0, 1, 3, 4, 7)] == [1.0, 1.2, 1.2, 1.5, 1.5]
    assert CURVE(15) == pytest.approx(3.0)
    dented = staircase({0: 10.0, 1: 13.0, 2: 12.0})
    assert dented(2) == dented(1) == 1.3


def test_limit_takes_best_width():
    fits = [k for k in range(100) if k + 1 <= 4 * CURVE(k)]
    assert limit(0.8, 4, CURVE) == pytest.approx(max(per_step(0.8, k) / CURVE(k) for k in fits))
    assert limit(0.5, 1, v=lambda k: 1.0 + k) == 1.0


def test_outages_leave_plain_decoding():
    assert with_outages(3.0, 0.5) == 2.0


def test_latency_and_bounds_only_cost():
    free = speedup(Scheme(0.9, 8))
    for worse in (Scheme(0.9, 8, 0.5), Scheme(0.9, 8, v=CURVE), Scheme(0.9, 8, k_max=3), Scheme(0.9, 7.5)):
        assert 1.0 < speedup(worse) < free
    assert speedup(Scheme(0.9, 8, latency=100.0)) == pytest.approx(1.0, abs=1e-3)


def test_a_drafter_without_ideas_changes_nothing():
    assert speedup(Scheme(1e-9, 8)) == pytest.approx(1.0)
    assert flat(100) == 1.0
