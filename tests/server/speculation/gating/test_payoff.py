"""A group that costs more than it brings rests, for the numbers of sessions where it does."""

from __future__ import annotations

import json
import random
from collections.abc import Callable

import pytest

from server.speculation.gating.payoff import (
    FEWER,
    FEWEST,
    FIRST,
    HOLD,
    LENGTH,
    LOSS,
    PARDONS,
    SETTLED,
    Payoff,
)


def run(
    payoff: Payoff, rate_on: float, rate_off: float, steps: int, n_sessions: int = 1
) -> tuple[float, int]:
    """Tokens per second over that many steps, each with a token per session, and in how many it guessed."""
    seconds, n_on = 0.0, 0
    for i in range(steps):
        step_s = n_sessions / (rate_on if payoff.on else rate_off)
        n_on += payoff.on
        seconds += step_s
        payoff.serve(n_sessions)
        payoff.step(n_sessions, n_sessions, step_s, heard=lambda i=i: i)
    return steps * n_sessions / seconds, n_on


def test_a_group_that_hurts_rests_soon_and_costs_one_percent():
    payoff = Payoff()
    _, n_on = run(payoff, rate_on=0.5, rate_off=1.0, steps=FIRST + SETTLED + FEWEST[False] + HOLD[False])
    assert n_on == FIRST
    rate, _ = run(payoff, rate_on=0.5, rate_off=1.0, steps=20_000)
    assert 1 - 1.5 * LOSS < rate < 1.0, "it is tried again, and that costs a hundredth"


def test_a_group_that_helps_costs_one_percent_of_trials():
    payoff = Payoff()
    rate, _ = run(payoff, rate_on=2.0, rate_off=1.0, steps=20_000)
    assert 2.0 * (1 - 1.5 * LOSS) < rate < 2.0


def test_a_trial_ends_as_soon_as_it_is_clear():
    for scatter, most in ((0.0, FEWEST[False]), (0.3, LENGTH[False])):
        payoff, n_off = Payoff(), 0
        for i in range(FIRST + SETTLED + LENGTH[False]):
            step_s = (1.0 if payoff.on else 1.1) * (1.0 + (scatter if i % 2 else -scatter))
            n_off += not payoff.on
            payoff.serve(1)
            payoff.step(1, 1, step_s, heard=lambda i=i: i)
        assert payoff.on
        assert n_off == SETTLED + most


def test_a_group_that_begins_to_help_is_taken_back():
    payoff = Payoff()
    run(payoff, rate_on=0.5, rate_off=1.0, steps=500)
    assert not payoff.on
    _, n_on = run(payoff, rate_on=2.0, rate_off=1.0, steps=3000)
    assert n_on > 1500


@pytest.mark.parametrize("hard", [0.5, 0.95])
def test_a_text_that_is_hard_to_guess_costs_the_next_one_nothing(hard: float):
    payoff = Payoff()
    run(payoff, hard, rate_off=1.0, steps=60)
    assert not payoff.on
    payoff.new_reply()
    _, n_on = run(payoff, rate_on=3.0, rate_off=1.0, steps=60)
    assert n_on >= 60 - SETTLED - FEWEST[False]


def test_a_group_that_loses_in_every_text_is_tried_in_the_first_ones_only():
    payoff, taken_back = Payoff(), 0
    for _ in range(10):
        run(payoff, rate_on=0.9, rate_off=1.0, steps=60)
        before = payoff.on
        payoff.new_reply()
        taken_back += payoff.on > before
    assert taken_back == PARDONS


def test_a_group_that_had_to_show_first_what_it_brings_gets_no_second_chance():
    payoff = Payoff(begins=False)
    run(payoff, rate_on=0.5, rate_off=1.0, steps=200)
    payoff.new_reply()
    _, n_on = run(payoff, rate_on=0.5, rate_off=1.0, steps=60)
    assert n_on == 0
    assert payoff.is_known


def test_among_several_a_new_reply_says_nothing():
    payoff = Payoff()
    run(payoff, rate_on=0.95, rate_off=1.0, steps=60, n_sessions=4)
    assert not payoff.on
    payoff.new_reply()
    assert not payoff.on


def test_equal_rates_leave_it_on():
    payoff = Payoff()
    _, n_on = run(payoff, rate_on=1.0, rate_off=1.0, steps=10_000)
    assert n_on > 9000


def test_each_number_of_sessions_has_its_verdict():
    payoff = Payoff()
    for _ in range(3):
        for n_sessions, gain in ((1, 2.0), (4, 0.8), (16, 0.5)):
            run(payoff, gain, 1.0, steps=800, n_sessions=n_sessions)
    for n_sessions, gain, helps in ((16, 0.5, False), (1, 2.0, True), (4, 0.8, False)):
        _, n_on = run(payoff, gain, 1.0, steps=80, n_sessions=n_sessions)
        assert (n_on > 35) == helps


def test_a_new_number_of_sessions_begins_with_the_verdict_of_fewer():
    payoff = Payoff()
    run(payoff, rate_on=0.5, rate_off=1.0, steps=100, n_sessions=2)
    run(payoff, rate_on=0.5, rate_off=1.0, steps=SETTLED, n_sessions=30)
    assert not payoff.on
    run(payoff, rate_on=0.5, rate_off=1.0, steps=FEWER, n_sessions=1)
    assert payoff.on, "fewer sessions than any that were tried"


def test_fewer_sessions_count_after_a_while_or_a_moment_without_any():
    payoff = Payoff()
    run(payoff, rate_on=0.5, rate_off=1.0, steps=100, n_sessions=16)
    run(payoff, rate_on=0.5, rate_off=1.0, steps=FEWER - 1, n_sessions=1)
    assert not payoff.on
    payoff.serve(16)
    payoff.serve(0)
    payoff.serve(1)
    assert payoff.on


def test_a_step_of_another_number_of_sessions_changes_nothing():
    payoff = Payoff()
    run(payoff, rate_on=2.0, rate_off=1.0, steps=200, n_sessions=16)
    for _ in range(HOLD[True]):
        run(payoff, rate_on=0.1, rate_off=1.0, steps=FEWER - 1, n_sessions=1)
        run(payoff, rate_on=2.0, rate_off=1.0, steps=1, n_sessions=16)
    assert payoff.on


@pytest.mark.parametrize("n_late", [5, 40])
def test_it_is_not_judged_before_its_guesses_come(n_late: int):
    """It has to read what came while it rested."""
    payoff = Payoff()
    run(payoff, rate_on=0.5, rate_off=1.0, steps=100)
    n_heard = on_for = 0
    for _ in range(20_000):
        on_for = on_for + 1 if payoff.on else 0
        n_heard += on_for > n_late
        rate = 1.0 if not payoff.on else 0.9 if on_for <= n_late else 2.0
        payoff.serve(1)
        payoff.step(1, 1, 1 / rate, heard=lambda n_heard=n_heard: n_heard)
        if on_for > n_late + LENGTH[True]:
            return
    pytest.fail("it was never taken back")


def test_none_is_tried_while_another_is():
    payoff = Payoff()
    for _ in range(500):
        payoff.serve(1)
        payoff.step(1, 1, 1.0, may_try=False)
        assert payoff.on
    payoff.serve(1)
    payoff.step(1, 1, 1.0)
    assert not payoff.on
    assert payoff.is_tried


def scattered(accept: float, rng: random.Random) -> int:
    """Tokens of a step with eight guesses."""
    n = 1
    while n < 9 and rng.random() < accept:
        n += 1
    return n


@pytest.mark.parametrize(("accept", "helps"), [(0.8, True), (0.5, True), (0.2, False), (0.0, False)])
def test_it_decides_rightly_however_tokens_scatter(accept: float, helps: bool):
    """A step with guesses takes half as long again as one without."""
    rng, payoff, n_on = random.Random(1), Payoff(), 0
    for i in range(20_000):
        n_on += payoff.on
        payoff.serve(1)
        payoff.step(
            1, scattered(accept, rng) if payoff.on else 1, 1.5 if payoff.on else 1.0, heard=lambda i=i: i
        )
    assert n_on > 17_000 if helps else n_on < 3_000


def test_one_poor_text_does_not_rest_for_long_what_slows_steps_by_little():
    """On two GPUs guesses more than double the rate, but not in the first reply."""
    payoff, n_good, n_used = Payoff(), 0, 0
    for i in range(3000):
        poor = i < 150 or i % 600 > 500
        n_good, n_used = n_good + (not poor), n_used + (payoff.on and not poor)
        seconds = 1.15 if payoff.on else 1.0
        payoff.serve(1)
        payoff.step(1, 3 if payoff.on and not poor else 1, seconds, heard=lambda i=i: i)
    assert n_used > 0.85 * n_good


def lost(rate: Callable[[Payoff], float], steps: int = 20_000) -> float:
    """Share of the tokens lost against never guessing."""
    payoff, seconds = Payoff(), 0.0
    for i in range(steps):
        step_s = 1 / rate(payoff)
        seconds += step_s
        payoff.serve(1)
        payoff.step(1, 1, step_s, heard=lambda i=i: i)
    return 1 - steps / seconds


@pytest.mark.parametrize("slow", [0.1, 0.3, 0.5, 0.7, 0.9, 0.95])
def test_whatever_it_costs_less_than_two_percent_are_lost(slow: float):
    assert lost(lambda payoff: slow if payoff.on else 1.0) < 0.02


def test_a_group_that_begins_to_hurt_rests_without_a_trial_and_for_a_while():
    payoff = Payoff()
    run(payoff, rate_on=1.2, rate_off=1.0, steps=HOLD[True])
    assert payoff.on
    steps = 0
    while payoff.on:
        run(payoff, rate_on=0.5, rate_off=1.0, steps=1)
        steps += 1
    assert steps < 80
    _, n_on = run(payoff, rate_on=0.5, rate_off=1.0, steps=HOLD[False] - 1)
    assert n_on == 0


def test_verdicts_are_known_after_a_restart():
    before = Payoff()
    before.recall({"1": (True, 0.0), "3": [False, 30.0]})
    after = Payoff()
    after.recall(before.memory())
    on = list[bool]()
    for n_sessions in (1, 2, 5):
        after.serve(n_sessions)
        on.append(after.on)
    assert on == [True, True, False]


def test_a_restart_is_no_reason_for_a_trial():
    """A lead is ended and started again after each minute."""
    payoff, n_tokens, seconds = Payoff(), 0, 0.0
    for _ in range(20):
        rate, _ = run(payoff, rate_on=0.5, rate_off=1.0, steps=200)
        n_tokens, seconds = n_tokens + 200, seconds + 200 / rate
        memory = json.loads(json.dumps(payoff.memory()))
        payoff = Payoff()
        payoff.recall(memory)
    assert n_tokens / seconds > 1 - 3 * LOSS


@pytest.mark.parametrize(
    "memory",
    [None, [], {"x": (True, 1.0)}, {"1": 3}, {"1": True}, {"-1": (True, 1.0)}, {"1": (True, -1.0)}, "text"],
)
def test_a_memory_that_is_none_is_ignored(memory: object):
    payoff = Payoff()
    payoff.recall(memory)
    assert payoff.memory() == {}


def test_trials_cost_little_where_the_number_of_sessions_changes():
    """Every 40 steps. The group makes a fifth of the speed; what the latest trial lost is not made up yet."""
    payoff, seconds, n_tokens = Payoff(), 0.0, 0
    for i in range(4000):
        n_sessions = (1, 3, 6, 12, 24)[i // 40 % 5]
        rate, _ = run(payoff, rate_on=0.2, rate_off=1.0, steps=1, n_sessions=n_sessions)
        seconds, n_tokens = seconds + n_sessions / rate, n_tokens + n_sessions
    assert n_tokens / seconds > 0.9


@pytest.mark.parametrize("n_sessions", [4, 16])
def test_what_a_trial_lost_counts_although_the_number_of_sessions_ended_it(n_sessions: int):
    payoff = Payoff()
    run(payoff, rate_on=0.5, rate_off=1.0, steps=FIRST + SETTLED + FEWEST[False], n_sessions=n_sessions)
    assert not payoff.on
    while not payoff.on:
        run(payoff, rate_on=0.1, rate_off=1.0, steps=1, n_sessions=n_sessions)
    run(payoff, rate_on=0.1, rate_off=1.0, steps=4, n_sessions=n_sessions)
    lost_s = 4 * n_sessions * (1 / 0.1 - 1)
    run(payoff, rate_on=0.1, rate_off=1.0, steps=1, n_sessions=4 * n_sessions)
    assert not payoff.on
    waited = 0
    while not payoff.on:
        run(payoff, rate_on=0.1, rate_off=1.0, steps=1, n_sessions=4 * n_sessions)
        waited += 4 * n_sessions
    assert waited >= 0.9 * lost_s / LOSS
