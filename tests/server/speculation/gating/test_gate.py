"""Decisions against brute force on small cases."""

from __future__ import annotations

import itertools
import math
import operator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.speculation.gating.gate import (
    affordable,
    choose,
    potential,
    reachable,
    with_losses,
    worth,
    worth_drafting,
)


def _curve(deltas: list[float]) -> list[float]:
    return [0.0, *itertools.accumulate([1.0, *deltas])]


def _offer(given: list[float]) -> list[float]:
    return list(itertools.accumulate(given, operator.mul))


CURVE = st.lists(st.floats(0.0, 1.0), min_size=1, max_size=7).map(_curve)
OFFER = st.lists(st.floats(0.01, 1.0), max_size=4).map(_offer)


def gain(curve: list[float], n_rows: int, offers: list[list[float]], counts: list[int], rate: float) -> float:
    """Tokens gained by a choice, less what its time is worth."""
    gained = sum(sum(offer[:n]) for offer, n in zip(offers, counts, strict=True))
    return gained - rate * (curve[n_rows + sum(counts)] - curve[n_rows])


@given(CURVE, st.lists(OFFER, min_size=1, max_size=3), st.floats(0.0, 4.0))
def test_the_choice_is_the_best_of_all_choices(curve: list[float], offers: list[list[float]], rate: float):
    n_rows = min(len(offers), len(curve) - 1)
    counts = choose(curve, n_rows, offers, rate)
    every = itertools.product(*(range(len(offer) + 1) for offer in offers))
    possible = [list(one) for one in every if n_rows + sum(one) < len(curve)]
    reached = max(
        (n_rows + gain(curve, n_rows, offers, one, 0.0)) / curve[n_rows + sum(one)] for one in possible
    )
    rate = min(rate, reached)
    best = max(gain(curve, n_rows, offers, one, rate) for one in possible)
    assert gain(curve, n_rows, offers, counts, rate) == pytest.approx(best, abs=1e-9)


def test_the_rate_of_a_faster_text_does_not_bar_guesses():
    """Guesses double what this step makes, and the text before made ten times as much."""
    assert choose([0.0, 1.0, 1.2, 1.4, 1.6], 1, [[0.9, 0.8, 0.7]], 10.0) == [3]


def lost(offer: list[float], n: int, pending: int) -> float:
    """Rows to be evaluated again after n guesses, by how many of them may come true."""
    reached = [1.0, *offer[:n], 0.0]
    return sum((reached[i] - reached[i + 1]) * (pending + i) for i in range(n))


@given(
    CURVE,
    st.lists(st.tuples(OFFER, st.integers(1, 5)), min_size=1, max_size=3),
    st.floats(0.0, 4.0),
)
def test_rows_that_a_wrong_guess_has_evaluated_again_count(
    curve: list[float], sessions: list[tuple[list[float], int]], rate: float
):
    """Against all numbers of the most probable guesses, where a row more always costs the same."""
    row_s = 0.25
    offers, pending = [offer for offer, _ in sessions], [n for _, n in sessions]
    n_rows = sum(pending)
    straight = [row_s * rows for rows in range(n_rows + len(curve))]
    counts = choose(straight, n_rows, offers, rate, pending)

    def value(counts: list[int]) -> float:
        again = sum(map(lost, offers, counts, pending))
        return gain(straight, n_rows, offers, counts, rate) - rate * row_s * again

    ranked = sorted((-p, i) for i, offer in enumerate(offers) for p in offer)[: len(straight) - 1 - n_rows]
    every = [[sum(i == j for _, i in ranked[:k]) for j in range(len(offers))] for k in range(len(ranked) + 1)]
    assert value(counts) == pytest.approx(max(map(value, every)), abs=1e-9)


def test_a_session_with_much_to_lose_guesses_only_what_is_sure():
    straight = [0.5 + 0.1 * rows for rows in range(40)]
    assert choose(straight, 12, [[0.7]], 1.0) == [1]
    assert choose(straight, 12, [[0.7]], 1.0, [1]) == [1]
    assert choose(straight, 12, [[0.7]], 1.0, [12]) == [1]
    assert choose(straight, 12, [[0.5]], 1.0, [12]) == [0]
    assert choose(straight, 12, [[0.5]], 1.0) == [1]


@given(CURVE, st.floats(0.05, 0.97))
def test_a_curve_with_losses_is_the_one_that_choices_are_made_by(curve: list[float], a: float):
    offer = [a ** (i + 1) for i in range(len(curve) - 2)]
    with_them = with_losses(curve, 1, 1, a)
    for n in range(1, len(offer) + 1):
        again = with_them[1 + n] - curve[1 + n]
        rows = lost(offer, n, 1)
        assert again >= -1e-9
        if 1 + rows <= len(curve) - 1:
            assert again <= curve[min(len(curve) - 1, math.ceil(1 + rows))] - curve[1] + 1e-9


def test_guesses_in_the_tail_cost_nothing_later():
    """One guess beyond a tail of two costs what a chain of one does without."""
    curve = [0.0, 1.0, 1.25, 1.5, 1.75, 2.0]
    without, chain = with_losses(curve, 1, 1, 0.5), with_losses(curve, 1, 1, 0.5, 2)
    assert chain[:4] == curve[:4]
    assert chain[4] - curve[4] == pytest.approx(without[2] - curve[2])
    assert choose(curve, 1, [[0.6, 0.4, 0.2]], 1.2, [1]) == [1]
    assert choose(curve, 1, [[0.6, 0.4, 0.2]], 1.2, [1], 2) == [2]


def test_widths_snap_to_the_steps_of_the_machine():
    stairs = [0.0, 1.0, 2.0, 2.0, 2.0, 4.0, 4.0, 4.0, 4.0]
    assert choose(stairs, 1, [[0.9, 0.5, 0.2, 0.1, 0.05]], 1.2) == [3]
    assert choose(stairs, 1, [[0.4, 0.2, 0.1]], 1.2) == [0]


def test_without_a_rate_everything_is_worth_trying():
    assert choose([0.0, 1.0, 9.0, 20.0], 1, [[0.5, 0.1, 0.1]], 0.0) == [2]


def throughput(curve: list[float], acceptance: float, td: float, depth: int) -> float:
    """Tokens per second of a synchronous scheme that always drafts `depth` tokens."""
    expected = sum(acceptance**i for i in range(depth + 1))
    return expected / (curve[1 + depth] + depth * td)


@given(st.floats(0.05, 0.97), st.floats(0.001, 0.5), CURVE)
def test_drafting_as_long_as_it_pays_reaches_the_best_fixed_depth(a: float, td: float, curve: list[float]):
    """At the best scheme's own rate, the rule keeps drafting until that scheme's depth, whose gain is zero
    by definition of the rate; at a rate a little lower it must not stop before."""
    depths = range(len(curve) - 1)
    best = max(depths, key=lambda depth: throughput(curve, a, td, depth))
    rate = throughput(curve, a, td, best) * 0.999
    depth = 0
    while depth + 1 < len(curve) - 1 and worth_drafting(curve[1 + depth :], a**depth, [(1.0, a)], td, rate):
        depth += 1
    if a**best > 0.01:
        assert throughput(curve, a, td, depth) >= throughput(curve, a, td, best) * 0.97 or depth >= best


@given(st.floats(0.05, 0.97), st.floats(0.001, 0.5), CURVE, st.integers(0, 8))
def test_what_is_reachable_is_the_rate_of_the_best_fixed_depth(
    a: float, td: float, curve: list[float], limit: int
):
    depths = range(min(limit, len(curve) - 2) + 1)
    best = max(throughput(curve, a, td, depth) for depth in depths)
    assert reachable(curve, 1, [a], limit, td) == pytest.approx(best)


@given(st.lists(st.floats(0.0, 1.0), max_size=12), st.floats(0.0, 3.0), st.floats(0.0, 0.5), CURVE)
def test_guesses_are_worth_the_best_number_of_them(
    probabilities: list[float], rate: float, td: float, curve: list[float]
):
    counts = range(min(len(probabilities), len(curve) - 2) + 1)
    gains = [sum(probabilities[:n]) - rate * (curve[1 + n] - curve[1] + n * td) for n in counts]
    assert worth(curve, 1, probabilities, rate, td) == pytest.approx(max(gains))
    assert worth(curve, len(curve), probabilities, rate, td) == 0.0, "no room"


@pytest.mark.parametrize(
    ("n_rows", "n_tokens", "td_s", "n"),
    [
        (1, 0.4, 0.0, 0),
        (1, 0.5, 0.0, 2),
        (1, 0.9, 0.0, 2),
        (1, 0.9, 0.3, 1),
        (1, 2.0, 0.0, 3),
        (3, 0.6, 0.0, 0),
        (3, 0.7, 0.0, 1),
    ],
)
def test_guesses_are_afforded_as_long_as_their_step_is_no_longer_than_tokens_are_worth(
    n_rows: int, n_tokens: float, td_s: float, n: int
):
    assert affordable([0.0, 1.0, 1.5, 1.5, 2.5], n_rows, 9 if n_rows + n < 4 else n, td_s, n_tokens) == n


def test_without_times_all_guesses_are_afforded():
    assert affordable([0.0] * 5, 1, 3, 0.1, 0.0) == 3


def test_what_several_sessions_can_reach():
    curve = [0.0, 1.0, 1.5, 2.0, 2.25, 2.5]
    rates = [2 / 1.5, (2 + 0.9 + 0.5) / (2.25 + 0.1)]
    assert reachable(curve, 2, [0.9, 0.5], 8, 0.1) == pytest.approx(max(rates))
    assert reachable(curve, 2, [0.9, 0.5], 0, 0.1) == pytest.approx(rates[0])


@pytest.mark.parametrize("curve", [[], [0.0], [0.0, 0.0, 0.0]])
def test_without_times_anything_is_reachable(curve: list[float]):
    assert reachable(curve, 1, [0.5], 8, 0.1) == math.inf


@pytest.mark.parametrize(("acceptance", "most"), [(0.8, 22), (0.9, 38), (0.95, 54)])
def test_where_a_row_adds_a_tenth_guesses_may_pay_for_that_many_sessions(acceptance: float, most: int):
    seconds = [0.0, *(1 + 0.1 * n for n in range(200))]
    paying = [n for n in range(1, 80) if potential(seconds, n, acceptance) >= 1.05]
    assert paying == list(range(1, most + 1))


def test_potential_is_that_of_the_best_number_of_guesses():
    assert potential([0, 1, 1, 1, 1], 1, 0.5) == pytest.approx(1 + 0.5 + 0.25 + 0.125)
    assert potential([0, 1, 1, 9, 9], 1, 0.5) == pytest.approx(1.5)
    assert potential([0, 1, 2, 3, 4], 2, 0.9) == 1.0
    assert potential([0, 1, 2], 2, 0.9) == 1.0, "no room"
    assert potential([0, 0, 0, 0], 1, 0.9) == 1.0, "nothing known"
