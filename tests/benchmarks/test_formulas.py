"""The formulas: the table they were first written down with, optima by brute force, and each other."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import pytest

from benchmarks.formulas import (
    asynchronous,
    best_wait,
    flat,
    limit,
    per_step,
    run_length,
    staircase,
    sync,
    tree_limit,
    waiting,
    with_outages,
)
from benchmarks.renewal import Scheme, speedup

SPEEDS = (2, 4, 8, 12, 20)
GRID = list(itertools.product((0.5, 0.7, 0.9), SPEEDS))
CURVE = staircase({0: 10.0, 3: 12.0, 7: 15.0})


TABLE: dict[str, tuple[Callable[[float], float], tuple[float, ...]]] = {
    "sync": (lambda r: sync(0.8, r), (1.22, 1.69, 2.27, 2.63, 3.09)),
    "never waiting": (lambda r: asynchronous(0.8, r), (1.55, 2.12, 2.55, 2.69, 2.76)),
    "waiting": (lambda r: waiting(0.8, r, best_wait(0.8, r)), (1.55, 2.14, 2.68, 2.97, 3.31)),
    "h = .8": (lambda r: asynchronous(0.8, r, h=0.8), (1.74, 2.74, 3.69, 4.06, 4.27)),
    "h = 1": (lambda r: asynchronous(0.8, r, h=1.0), (1.80, 2.95, 4.16, 4.66, 4.94)),
}


@pytest.mark.parametrize("scheme", TABLE)
def test_the_table_for_a_of_80_percent(scheme: str):
    formula, row = TABLE[scheme]
    assert [round(formula(r), 2) for r in SPEEDS] == list(row)


@pytest.mark.parametrize(("a", "r"), GRID)
def test_the_best_wait_is_the_best(a: float, r: float):
    w = best_wait(a, r)
    assert waiting(a, r, w) >= max(waiting(a, r, other / 50) for other in range(1000))
    assert waiting(a, r, 0) == pytest.approx(asynchronous(a, r))


@pytest.mark.parametrize(("a", "r"), GRID)
def test_nothing_beats_the_limit_and_drafting_beats_nothing(a: float, r: float):
    assert 1 <= sync(a, r) <= limit(a, r) <= run_length(a)
    assert 1 <= asynchronous(a, r) < asynchronous(a, r, 0.5) < asynchronous(a, r, 1.0)
    assert asynchronous(a, r, 1.0) <= limit(a, r) + 1e-9


def test_sync_drafts_nothing_where_nothing_pays():
    assert sync(0.5, 4, latency=50.0) == 1.0
    assert sync(0.5, 1, v=lambda k: 1.0 + k) == 1.0


def test_sync_takes_the_best_number_of_drafts():
    values = [per_step(0.8, k) / (CURVE(k) + k / 8) for k in range(30)]
    assert sync(0.8, 8, CURVE) == pytest.approx(max(values))


def test_a_staircase_goes_through_what_was_measured_and_up():
    assert [CURVE(k) for k in (0, 1, 3, 4, 7)] == [1.0, 1.2, 1.2, 1.5, 1.5]
    assert CURVE(15) == pytest.approx(3.0)
    dented = staircase({0: 10.0, 1: 13.0, 2: 12.0})
    assert dented(2) == dented(1) == 1.3


def test_a_tree_of_one_rank_is_a_chain():
    assert tree_limit([0.8], CURVE, 7) == pytest.approx(
        max(per_step(0.8, k) / CURVE(k) for k in range(8)), rel=1e-6
    )


def test_a_tree_limit_by_brute_force():
    ranks, n = (0.6, 0.3), 4
    paths = [
        math.prod(ranks[i] for i in path)
        for depth in range(1, n + 1)
        for path in itertools.product(range(len(ranks)), repeat=depth)
    ]
    best = max((1 + sum(sorted(paths, reverse=True)[:k])) / CURVE(k) for k in range(n + 1))
    assert tree_limit(ranks, CURVE, n) == pytest.approx(best)
    assert tree_limit(ranks, CURVE, n) > tree_limit(ranks[:1], CURVE, n)


def test_outages_leave_plain_decoding():
    assert with_outages(3.0, 0.5) == 2.0


@pytest.mark.parametrize(("a", "r"), GRID)
@pytest.mark.parametrize("h", [0.0, 0.5, 1.0])
def test_the_renewal_sum_contains_the_closed_formula(a: float, r: float, h: float):
    assert speedup(Scheme(a, r, h=h)) == pytest.approx(asynchronous(a, r, h), rel=1e-6)


@pytest.mark.parametrize("w", [1, 2, 5])
@pytest.mark.parametrize("latency", [0.0, 0.3, 1.0])
def test_the_renewal_sum_contains_waiting(w: int, latency: float):
    scheme = Scheme(0.8, 8, latency, wait=w)
    assert speedup(scheme) <= waiting(0.8, 8, w, latency) + 1e-6
    assert speedup(Scheme(0.8, 8, wait=w)) == pytest.approx(waiting(0.8, 8, w), rel=1e-6)


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
