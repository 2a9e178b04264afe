"""Forecasts beside the formulas and by hand."""

from __future__ import annotations

import random

import pytest

from server.doctor.forecast import MAX_GUESSES, Device, Guess, beside, inside, undrafted
from tests.formulas import Scheme, per_step, speedup

FLAT = [0.0] + [1.0] * (MAX_GUESSES + 1)


def text(a: float, n: int = 20_000) -> list[Guess]:
    rng = random.Random(7)
    return [Guess(rng.random() < a, a) for _ in range(n)]


@pytest.mark.parametrize("a", [0.5, 0.8, 0.9])
@pytest.mark.parametrize(("r", "latency"), [(2.0, 0.0), (8.0, 0.0), (8.0, 0.5)])
def test_free_target_follows_the_formula(a: float, r: float, latency: float):
    guesses = text(a)
    found = undrafted([guesses], FLAT) / beside([guesses], FLAT, Device(1 / r, latency))
    assert found == pytest.approx(speedup(Scheme(a, r, latency, k_max=MAX_GUESSES)), rel=0.04)


def test_inside_drafting_stops_when_unprofitable():
    guesses = text(0.8)
    found = undrafted([guesses], FLAT) / inside([guesses], FLAT, 0.1)
    best = max(per_step(0.8, k) / (1 + 0.1 * k) for k in range(MAX_GUESSES))
    assert found == pytest.approx(best, rel=0.02)


def test_forecast_never_loses_to_undrafted():
    guesses = text(0.1)
    steep = [0.0] + [1.0 + 0.9 * row for row in range(MAX_GUESSES + 1)]
    assert inside([guesses], steep, 0.5) == undrafted([guesses], steep)
    assert beside([guesses], steep, Device(0.5)) <= undrafted([guesses], steep)


def test_dear_rows_need_sure_guesses():
    rights = [guess.right for guess in text(0.75)]
    steep = [0.0] + [1.0 + 0.2 * row for row in range(MAX_GUESSES + 1)]
    telling = [Guess(right, 0.95 if right else 0.2) for right in rights]
    blind = [Guess(right, 0.75) for right in rights]
    assert inside([telling], steep, 0.01) < 0.9 * inside([blind], steep, 0.01)


def test_dear_second_row_needs_followers():
    guesses, jump = text(0.9, 2000), [0.0, 1.0] + [1.6] * MAX_GUESSES
    assert inside([guesses], jump, 0.3) < 0.7 * undrafted([guesses], jump)


def test_every_reply_begins_anew():
    guesses = [Guess(True, 0.9)] * 8
    apart, together = [guesses[:4], guesses[4:]], [guesses]
    assert (beside(apart, FLAT, Device(0.1)), beside(together, FLAT, Device(0.1))) == (4, 2)
    assert inside(apart, FLAT, 0.01, read_s=0.5) == pytest.approx(2 * (0.5 + 4 * 0.01 + 1))


def test_by_hand():
    guesses = [Guess(True, 0.9), Guess(True, 0.9), Guess(False, 0.9), Guess(True, 0.9)]
    # Nothing has arrived at first: the first step says token 0. Guesses for 0, 1 and 2 arrive meanwhile. The
    # second step takes those for 1 and 2, of which one is right, and says both. The third is plain again.
    assert beside([guesses], FLAT, Device(0.3)) == pytest.approx(3.0)
    assert inside([guesses], FLAT, 0.1) == pytest.approx((4 * 0.1 + 1) + (0.1 + 1))
