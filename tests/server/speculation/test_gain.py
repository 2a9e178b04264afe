"""The one rule by which steps are compared."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.speculation.gain import best, chain, lost_rows, more_s, reached

STEPS = st.lists(st.tuples(st.floats(0.0, 9.0), st.floats(0.1, 9.0)), min_size=1, max_size=8)


@given(STEPS, st.floats(0.0, 4.0))
def test_best_gains_most_over_the_first(steps: list[tuple[float, float]], rate: float):
    tokens, seconds = [n for n, _ in steps], [s for _, s in steps]
    gains = [n - rate * s for n, s in steps]
    at, gain = best(tokens, seconds, rate)
    assert gain == pytest.approx(max(gains) - gains[0])
    assert at == gains.index(max(gains)), "the first of equals"


@given(STEPS)
def test_no_step_makes_more_than_is_reached(steps: list[tuple[float, float]]):
    found = reached([n for n, _ in steps], [s for _, s in steps])
    assert found == max(n / s for n, s in steps)


def test_a_step_without_a_time_reaches_anything():
    assert reached([1.0, 2.0], [0.0, 1.0]) == math.inf


@given(st.floats(0.0, 1.0), st.integers(0, 9), st.floats(0.0, 1.0))
def test_a_chain_brings_what_its_guesses_bring(acceptance: float, n: int, path: float):
    expected = [sum(path * acceptance**i for i in range(1, k + 1)) for k in range(n + 1)]
    assert chain(acceptance, n, path) == pytest.approx(expected)


def test_wrong_guess_replays_pending_rows():
    """Two pending rows are lost with probability 0.4, and with the second guess the first one, too."""
    guesses = [(0.6, 0), (0.3, 0)]
    assert list(lost_rows(guesses, [2], n_tail=0)) == pytest.approx([0.4 * 2, 0.7 * 2 + 0.3])
    assert list(lost_rows(guesses, [2], n_tail=1)) == pytest.approx([0.0, 0.4 * 2])


def test_rows_between_and_beyond_known_ones():
    seconds = [0.0, 1.0, 2.0, 2.0]
    assert more_s(seconds, 1, 0.5) == pytest.approx(0.5)
    assert more_s(seconds, 1, 5.0) == pytest.approx(2.0 * 2 - 1.0)
