"""Pausing a drafter that hurts, and only such a one."""

from __future__ import annotations

import pytest

from server.speculation.gating.trial import ENOUGH, HOLD, TRIAL, WARM_UP, Trial


def run(trial: Trial, rate_on: float, rate_off: float, steps: int) -> tuple[float, int]:
    """Tokens per second over that many steps of one token, and how many of them had drafters."""
    seconds, n_on = 0.0, 0
    for _ in range(steps):
        rate = rate_on if trial.on else rate_off
        n_on += trial.on
        seconds += 1 / rate
        trial.step(1, 1 / rate, plain=trial.muted or not trial.on)
    return steps / seconds, n_on


def test_a_drafter_that_hurts_is_paused_soon_and_stays_so():
    trial = Trial()
    rate, n_on = run(trial, rate_on=0.5, rate_off=1.0, steps=5000)
    assert n_on < WARM_UP + 500
    assert rate > 0.9
    rate, _ = run(trial, rate_on=0.5, rate_off=1.0, steps=20_000)
    assert rate > 0.98


def test_a_drafter_that_helps_is_hardly_ever_paused():
    trial = Trial()
    rate, n_on = run(trial, rate_on=2.0, rate_off=1.0, steps=20_000)
    assert n_on > 19_850
    assert rate == pytest.approx(2.0, rel=0.02)


def test_a_trial_ends_as_soon_as_it_is_clear_that_drafters_help():
    for rate_on, most in ((2.0, 2 * ENOUGH), (1.1, TRIAL)):
        trial = Trial()
        run(trial, rate_on, rate_off=1.0, steps=WARM_UP - 1)
        _, n_on = run(trial, rate_on, rate_off=1.0, steps=100)
        assert 100 - n_on == most


def test_it_is_taken_back_when_it_begins_to_help():
    trial = Trial()
    run(trial, rate_on=0.5, rate_off=1.0, steps=WARM_UP + 100)
    assert not trial.on
    _, n_on = run(trial, rate_on=2.0, rate_off=1.0, steps=3 * HOLD)
    assert n_on > HOLD


def test_equal_rates_leave_it_on():
    trial = Trial()
    _, n_on = run(trial, rate_on=1.0, rate_off=1.0, steps=10_000)
    assert n_on > 9_850


def test_where_other_guesses_fill_the_steps_nothing_is_decided():
    trial = Trial()
    for _ in range(2000):
        trial.step(4, 1.0 if trial.on else 0.5, plain=False)
    n_on = 0
    for _ in range(2000):
        n_on += trial.on
        trial.step(4, 1.0 if trial.on else 0.5, plain=False)
    assert n_on > 1900


def mixed(trial: Trial, beside_s: float, n: int) -> int:
    """Steps of one token that take 4 s with guesses, 3 s without while drafters rest, beside_s beside them;
    how many of n had drafters that were of use."""
    n_on = 0
    for _ in range(n):
        used = trial.on and not trial.muted
        n_on += used
        trial.step(1, 4.0 if used else beside_s if trial.on else 3.0, plain=not used)
    return n_on


def test_poor_guesses_are_no_reason_to_pause_a_drafter_that_slows_nothing():
    assert mixed(Trial(), beside_s=3.0, n=5000) > 4700


def test_who_begins_badly_and_is_right_then_is_not_paused():
    """Several sessions together have many wrong guesses within one step or two."""
    for wrong in (1, 3):
        trial, n_used = Trial(), 0
        for i in range(1000):
            used = trial.on and not trial.muted
            n_used += used
            right = i >= wrong
            score = 16 * (i + 1), 16 * max(0, i + 1 - wrong)
            seconds = 1.2 if trial.on else 1.0
            trial.step(48 if used and right else 16, seconds, plain=not used, score=score, sessions=16)
        assert n_used > 900


def test_steps_of_other_numbers_of_sessions_are_not_compared():
    """What four sessions make at rest says nothing of one beside a drafter."""
    trial = Trial()
    for _ in range(WARM_UP):
        trial.step(1, 1.1, plain=False)
    for _ in range(HOLD):
        assert not trial.muted
        trial.step(1 if trial.on else 4, 1.0, plain=not trial.on, sessions=1 if trial.on else 4)
    assert trial.on


def test_a_drafter_that_has_to_catch_up_first_is_not_blamed_for_it():
    """Beside it steps are slow until it has read the prompt that came while it rested."""
    trial, n_beside, slowest = Trial(), 0, TRIAL - ENOUGH
    for _ in range(WARM_UP + 200):
        used = trial.on and not trial.muted
        n_beside = n_beside + 1 if trial.muted else 0
        seconds = 4.0 if used else 9.0 if 0 < n_beside <= slowest else 3.0
        trial.step(1, seconds, plain=not used)
    assert trial.on


def test_what_is_clear_takes_few_steps():
    trial = Trial()
    run(trial, rate_on=0.5, rate_off=1.0, steps=WARM_UP)
    _, n_on = run(trial, rate_on=0.5, rate_off=1.0, steps=TRIAL + HOLD)
    assert n_on <= TRIAL + 2 * ENOUGH, "steps beside it"
    assert not trial.on
    _, n_on = run(trial, rate_on=0.5, rate_off=1.0, steps=2 * HOLD)
    assert n_on <= 2 * TRIAL, "when it was tried again"


def test_poor_guesses_that_slow_steps_are_one():
    assert mixed(Trial(), beside_s=3.5, n=5000) < WARM_UP + 500


def test_wrong_guesses_do_not_pause_a_drafter_beside_which_steps_are_slow_for_another_reason():
    """On a GPU of its own it slows nothing. But a plain step after one with guesses takes longer there, and a
    while of wrong guesses has many of these."""
    trial, judged, was_plain, n_on = Trial(), 0, False, 0
    for i in range(4 * HOLD):
        used = trial.on and not trial.muted
        n_on += used
        judged += used
        plain = not used or i % 3 > 0
        seconds = 1.0 if plain and was_plain else 1.5
        was_plain = plain
        trial.step(1, seconds, plain=plain, score=(judged, 0))
    assert n_on > 0.9 * 4 * HOLD


def test_one_poor_text_does_not_pause_for_long_what_slows_steps_by_little():
    """On two GPUs: what the lead does with guesses takes it 4 % of a step, and they more than double its
    rate, but not in the first reply."""
    trial, n_good, n_used = Trial(), 0, 0
    for i in range(3000):
        used = trial.on and not trial.muted
        poor = i < 150 or i % 600 > 500
        n_good, n_used = n_good + (not poor), n_used + (used and not poor)
        seconds = 1.15 if used else 1.04 if trial.on else 1.0
        trial.step(3 if used and not poor else 1, seconds, plain=not used)
    assert n_used > 0.9 * n_good
