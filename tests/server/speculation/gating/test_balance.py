"""Drafters rest in a session that they cost more than they bring it."""

from __future__ import annotations

import pytest

from server.engine.proposer import NOTHING, ROOT, Planned, Proposal, TimedStep
from server.speculation.gating.balance import KNOWN, RESTS, TRIED, Balance, Overhead


def n_until_resting(balance: Balance, n_accepted: float, n_lost: float) -> int:
    for i in range(1, 1000):
        balance.step(n_accepted, n_lost)
        if balance.resting:
            return i
    return 0


def test_drafters_that_cost_more_than_they_bring_rest_once_that_is_known():
    assert n_until_resting(Balance(), 0.0, 0.05) == TRIED
    assert n_until_resting(Balance(), 0.1, 0.05) == 0


def test_each_rest_in_a_row_takes_twice_as_long_up_to_a_bound():
    balance, lengths = Balance(), list[int]()
    for _ in range(6):
        n_until_resting(balance, 0.0, 0.05)
        lengths.append(0)
        while balance.resting:
            balance.rest()
            lengths[-1] += 1
    assert lengths == [64, 128, 256, 512, 512, 512]


def test_after_a_good_part_a_rest_is_short_again():
    balance = Balance()
    for _ in range(2):
        n_until_resting(balance, 0.0, 0.05)
        while balance.resting:
            balance.rest()
    for _ in range(TRIED):
        balance.step(2.0, 0.5)
    n_until_resting(balance, 0.0, 0.5)
    n_rest = 0
    while balance.resting:
        balance.rest()
        n_rest += 1
    assert n_rest == RESTS[0]


def test_a_text_that_turns_hard_is_noticed_within_a_few_lines():
    balance = Balance()
    for _ in range(500):
        balance.step(1.0, 0.3)
    assert 0 < n_until_resting(balance, 0.0, 0.1) < 100


class Steps:
    """What steps that take no time to decode tell an Overhead."""

    def __init__(self) -> None:
        self.overhead = Overhead()

    def take(
        self, outside_s: float, n: int = KNOWN, *, told: int = 0, of: int = 1, guessing: bool = False
    ) -> None:
        """n steps of `of` sessions, `told` of which drafters have."""
        planned = Planned([Proposal((7,), (ROOT,), ("drafter",)) if guessing else NOTHING] * of)
        for _ in range(n):
            self.overhead.observe(planned, TimedStep(of, 0, 0.0, outside_s, of, of), told)

    def cost(self, *, guessing: bool = False) -> float:
        return self.overhead.seconds(guessing=guessing)


def test_drafters_cost_nothing_until_steps_without_them_are_known():
    steps = Steps()
    steps.take(0.0005, told=1)
    assert steps.cost() == 0.0
    steps.take(0.0002)
    assert steps.cost() == 0.0, "nobody has a session"
    steps.take(0.0005, told=1)
    assert steps.cost() == pytest.approx(0.0003)
    steps.take(0.0001, told=1, guessing=True)
    assert steps.cost(guessing=True) == 0.0


def test_the_first_steps_of_a_process_are_no_measure_of_what_drafters_cost():
    steps = Steps()
    steps.take(0.0002)
    for outside_s in (0.015, 0.003, *[0.0004] * KNOWN):
        steps.take(outside_s, 1, told=1, guessing=True)
    assert steps.cost(guessing=True) == pytest.approx(0.0002)


def test_guesses_of_others_are_no_measure_of_what_drafters_cost():
    steps = Steps()
    steps.take(0.0002)
    steps.take(0.0009, guessing=True)
    steps.take(0.0003, told=1, guessing=True)
    assert steps.cost(guessing=True) == pytest.approx(0.0001)


@pytest.mark.parametrize(("told", "each_s"), [(64, 0.00003), (4, 16 * 0.00003)])
def test_what_drafters_cost_is_borne_by_the_sessions_that_they_have(told: int, each_s: float):
    steps = Steps()
    steps.take(64 * 0.00002, of=64)
    steps.take(64 * 0.00005, of=64, told=told)
    assert steps.cost() == pytest.approx(each_s)


def test_steps_of_few_sessions_are_no_measure_of_those_of_many():
    steps = Steps()
    steps.take(0.0004)
    steps.take(64 * 0.00005, of=64, told=4)
    assert steps.cost() == 0.0
