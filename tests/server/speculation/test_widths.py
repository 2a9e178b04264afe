"""Widths: padding to the width that gains most, where it pays at all."""

from __future__ import annotations

import pytest

from server.speculation.widths import EVERY, Widths

CURVE = [0.0, 0.007, 0.009, *[0.010] * 31]  # a change of width costs
STEADY = {4: 0.0080, 8: 0.0082, 17: 0.0084}
SURE = [0.95**k for k in range(1, 17)]


def settled(widths: Widths, offers: list[list[float]], *, n_rows: int = 1, most: int = 17) -> int:
    for i in range(4 * EVERY):
        widths.observe(n_rows, most, offers[i % len(offers)], CURVE)
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


def test_what_cannot_be_reached_is_not_chosen():
    assert settled(Widths(STEADY), [SURE[:8]], most=9) == 8


def test_a_width_is_for_as_many_sessions_as_it_was_found_for():
    widths = Widths(STEADY)
    assert settled(widths, [SURE], n_rows=2, most=34) == 17
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
    widths.timed(8, 5.0)  # one outlier counts little
    assert widths.steady[8] < 0.0095
