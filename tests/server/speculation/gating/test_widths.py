"""Widths: padding to the width that gains most, where it pays at all."""

from __future__ import annotations

import pytest

from server.speculation.gating.widths import EVERY, Offered, Widths

CURVE = [0.0, 0.007, 0.009, *[0.010] * 31]  # a change of width costs
STEADY = {4: 0.0080, 8: 0.0082, 17: 0.0084}
SURE = [0.95**k for k in range(1, 17)]


def settled(widths: Widths, offers: list[list[float]], *, n_rows: int = 1) -> int:
    for i in range(4 * EVERY):
        widths.observe(n_rows, Offered(offers[i % len(offers)]), CURVE)
    return widths.width(n_rows)


def test_nothing_is_padded_where_a_change_costs_nothing():
    widths = Widths({})
    assert not widths.pays
    assert settled(widths, [SURE]) == 0


@pytest.mark.parametrize(
    ("offers", "width"),
    [
        pytest.param([SURE], 17, id="many good guesses"),
        pytest.param([SURE[:3]], 4, id="few good guesses"),
        pytest.param([SURE[:7], SURE[:6]], 8, id="some"),
        pytest.param([SURE[:0]], 0, id="none"),
        pytest.param([[0.02, 0.01]], 0, id="bad ones"),
        pytest.param([SURE[:2], *[SURE[:0]] * 4], 0, id="now and then"),
    ],
)
def test_the_width_that_gains_most(offers: list[list[float]], width: int):
    assert settled(Widths(STEADY), offers) == width


def test_rows_for_more_guesses_than_there_are_gain_nothing():
    assert settled(Widths(STEADY), [SURE[:7]]) == 8


@pytest.mark.parametrize(
    ("acceptance", "spent_s", "width"),
    [
        pytest.param(0.9, 0.010, 17, id="they take long and are good"),
        pytest.param(0.4, 0.0, 17, id="they are bad and take no time"),
        pytest.param(0.4, 0.003, 1, id="bad, and steps wait for them"),
        pytest.param(0.05, 0.0, 1, id="hardly ever right"),
    ],
)
def test_steps_without_guesses_where_guesses_do_not_pay(acceptance: float, spent_s: float, width: int):
    widths = Widths({1: 0.005, 17: 0.0064})
    assert widths.best == 17, "to begin with"
    offer = Offered([acceptance**k for k in range(1, 17)], spent_s)
    for _ in range(4 * EVERY):
        widths.observe(1, offer, CURVE)
    assert widths.width(1) == width


def test_guesses_come_back_when_they_would_pay():
    """Nothing is guessed in steps of one row: what is known of whoever would guess has to say it."""
    widths = Widths({1: 0.005, 17: 0.0064})
    for _ in range(4 * EVERY):
        widths.observe(1, Offered([0.3], 0.003), CURVE)
    assert widths.width(1) == 1
    assert widths.curve(1) == [0.005] * 2
    for acceptance, width in ((0.3, 1), (0.8, 17)):
        padded = Offered([acceptance**k for k in range(1, 9)], 0.008)
        for _ in range(4 * EVERY):
            widths.observe(1, Offered(()), CURVE, padded)
        assert widths.width(1) == width


def test_a_width_is_for_as_many_sessions_as_it_was_found_for():
    widths = Widths(STEADY)
    assert settled(widths, [SURE], n_rows=2) == 17
    assert widths.width(1) == 0
    assert settled(widths, [SURE[:3]]) == 4


def test_guesses_are_free_up_to_the_width():
    assert Widths(STEADY).curve(4) == [0.0080] * 5


def test_a_width_that_turns_out_slow_is_left():
    widths = Widths(STEADY)
    assert settled(widths, [SURE]) == 17
    for _ in range(60):
        widths.timed(17, 0.012)
    assert settled(widths, [SURE]) == 0


def test_one_outlier_counts_little():
    widths = Widths(STEADY)
    widths.timed(8, 5.0)
    assert widths.steady[8] < 0.0095
    assert widths.steady[17] == pytest.approx(STEADY[17], rel=0.01)


def test_a_longer_context_makes_all_widths_slower():
    widths = Widths({1: 0.005, 17: 0.0065})
    for _ in range(600):
        widths.timed(17, 0.0095)
    assert widths.steady[1] == pytest.approx(0.008, rel=0.02)


def test_a_width_that_was_slow_is_tried_again():
    """Others had the machine for a while, say: nobody would measure it otherwise."""
    widths = Widths({1: 0.005, 17: 0.0065})
    widths.best = 17
    for _ in range(60):
        widths.timed(17, 0.05)
    assert widths.steady[17] > 0.03
    for _ in range(600):
        widths.timed(1, 0.005)
    assert widths.steady[17] == pytest.approx(0.0065, rel=0.05)
