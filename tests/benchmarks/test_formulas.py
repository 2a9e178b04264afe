"""The formulas: the table they were first written down with, optima by brute force, and each other."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from benchmarks.formulas import (
    Scheme,
    asynchronous,
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


TABLE: dict[str, tuple[Callable[[float], float], tuple[float, ...]]] = {
    "never waiting": (lambda r: asynchronous(0.8, r), (1.55, 2.12, 2.55, 2.69, 2.76)),
    "h = .8": (lambda r: asynchronous(0.8, r, h=0.8), (1.74, 2.74, 3.69, 4.06, 4.27)),
    "h = 1": (lambda r: asynchronous(0.8, r, h=1.0), (1.80, 2.95, 4.16, 4.66, 4.94)),
}


@pytest.mark.parametrize("scheme", TABLE)
def test_the_table_for_a_of_80_percent(scheme: str):
    formula, row = TABLE[scheme]
    assert [round(formula(r), 2) for r in SPEEDS] == list(row)


@pytest.mark.parametrize(("a", "r"), GRID)
def test_nothing_beats_the_limit_and_drafting_beats_nothing(a: float, r: float):
    assert 1 <= limit(a, r) <= run_length(a)
    assert 1 <= asynchronous(a, r) < asynchronous(a, r, 0.5) < asynchronous(a, r, 1.0)
    assert asynchronous(a, r, 1.0) <= limit(a, r) + 1e-9


def test_a_staircase_goes_through_what_was_measured_and_up():
    assert [CURVE(k) for k in (0, 1, 3, 4, 7)] == [1.0, 1.2, 1.2, 1.5, 1.5]
    assert CURVE(15) == pytest.approx(3.0)
    dented = staircase({0: 10.0, 1: 13.0, 2: 12.0})
    assert dented(2) == dented(1) == 1.3


def test_the_limit_is_that_of_the_best_width_a_drafter_can_fill():
    fits = [k for k in range(100) if k + 1 <= 4 * CURVE(k)]
    assert limit(0.8, 4, CURVE) == pytest.approx(max(per_step(0.8, k) / CURVE(k) for k in fits))
    assert limit(0.5, 1, v=lambda k: 1.0 + k) == 1.0


def test_outages_leave_plain_decoding():
    assert with_outages(3.0, 0.5) == 2.0


@pytest.mark.parametrize(("a", "r"), GRID)
@pytest.mark.parametrize("h", [0.0, 0.5, 1.0])
def test_the_renewal_sum_contains_the_closed_formula(a: float, r: float, h: float):
    assert speedup(Scheme(a, r, h=h)) == pytest.approx(asynchronous(a, r, h), rel=1e-6)


def test_latency_and_bounds_only_cost():
    free = speedup(Scheme(0.9, 8, h=0.5))
    for worse in (
        Scheme(0.9, 8, 0.5, 0.5),
        Scheme(0.9, 8, 0.0, 0.5, CURVE),
        Scheme(0.9, 8, 0.0, 0.5, k_max=3),
        Scheme(0.9, 7.5, 0.0, 0.5),
    ):
        assert 1.0 < speedup(worse) < free
    assert speedup(Scheme(0.9, 8, latency=100.0)) == pytest.approx(1.0, abs=1e-3)


def test_a_drafter_without_ideas_changes_nothing():
    assert speedup(Scheme(1e-9, 8)) == pytest.approx(1.0)
    assert flat(100) == 1.0
