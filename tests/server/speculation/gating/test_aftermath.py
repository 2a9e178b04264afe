"""What a lone step with guesses costs the plain ones after it."""

from __future__ import annotations

import pytest

from server.speculation.gating.aftermath import Aftermath

PLAIN, FIRST, SECOND, WIDE = 4.5, 5.4, 5.6, 7.8
CURVE = [0.0, PLAIN, *[WIDE] * 7]


def after(pattern: str, n: int = 40) -> tuple[Aftermath, list[float]]:
    """Steps by a pattern, `p`lain or `w`ide, again and again, and what is said to be usual for them."""
    aftermath, usual, n_plain = Aftermath(), list[float](), 2
    for letter in pattern * n:
        plain = letter == "p"
        n_plain = n_plain + 1 if plain else 0
        aftermath.would_pay(not plain)
        took = WIDE if not plain else FIRST if n_plain == 1 else SECOND if n_plain == 2 else PLAIN
        usual.append(aftermath.usual(1 if plain else 4, took, plain=plain))
    return aftermath, usual


def test_a_lone_step_with_guesses_is_charged_for_the_two_after_it():
    aftermath, usual = after("ppppw")
    extra = (FIRST - PLAIN) + (SECOND - PLAIN)
    assert aftermath.charged(CURVE, 1) == pytest.approx([0.0, PLAIN, *[WIDE + extra] * 7], rel=0.005)
    assert usual[-5:] == pytest.approx([PLAIN] * 4 + [WIDE], rel=0.005)


def test_where_they_follow_each_other_nothing_comes_after():
    aftermath, _ = after("pppp" + "w" * 60, n=1)
    assert aftermath.charged(CURVE, 1) == pytest.approx(CURVE)


def test_by_how_often_plain_steps_come_after():
    aftermath, _ = after("ppppww", n=200)
    extra = (FIRST - PLAIN) + (SECOND - PLAIN)
    assert 0.3 * extra < aftermath.charged(CURVE, 1)[2] - WIDE < 0.7 * extra


def test_nothing_is_charged_before_anything_is_known():
    assert Aftermath().charged(CURVE, 1) == CURVE
    aftermath, _ = after("pppp")
    assert aftermath.charged(CURVE, 1) == CURVE


def test_what_was_usual_long_ago_is_no_measure():
    aftermath, _ = after("pppp" + "wp" * 60, n=1)
    known = aftermath.charged(CURVE, 1)
    for _ in range(100):
        aftermath.usual(4, 2 * WIDE, plain=False)
        aftermath.usual(1, 2 * PLAIN, plain=True)  # the context has grown
    assert aftermath.charged(CURVE, 1) == pytest.approx(known)


def test_other_numbers_of_sessions_are_not_compared():
    aftermath, _ = after("pppp")
    for _ in range(10):
        assert aftermath.usual(2, 9.0, plain=True) == 9.0
    assert aftermath.charged(CURVE, 2) == CURVE
