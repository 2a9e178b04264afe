"""Models rest in a session that they cost more than they bring it."""

from __future__ import annotations

import pytest

from server.engine.proposer import NOTHING, ROOT, Planned, Proposal, TimedStep
from server.speculation.gating.balance import (
    ASSUMED,
    HEARD,
    KNOWN,
    STAKE,
    TRIED,
    TRIED_AMONG,
    Balance,
    Overhead,
)
from server.speculation.gating.credit import LOSS


def n_until_resting(
    balance: Balance, n_accepted: float, n_lost: float, *, guessed: bool = True, n_sessions: int = 1
) -> int:
    for i in range(1, 1000):
        balance.step(n_accepted, n_lost, guessed=guessed, heard=not guessed, n_sessions=n_sessions)
        if balance.resting:
            return i
    return 0


def n_until_going(balance: Balance) -> int:
    n = 0
    while balance.resting:
        balance.rest()
        n += 1
    return n


@pytest.mark.parametrize(("guessed", "n"), [(True, TRIED), (False, HEARD)])
def test_models_that_cost_more_than_they_bring_rest_once_that_is_known(guessed: bool, n: int):
    balance = Balance()
    assert not balance.counts
    assert n_until_resting(balance, 0.0, 0.05, guessed=guessed) == n
    assert balance.counts
    assert n_until_resting(Balance(), 0.1, 0.05, guessed=guessed) == 0


def test_first_guesses_that_come_late_are_no_reason_to_rest():
    balance = Balance()
    for i in range(HEARD - 1):
        balance.step(0.0, 0.5 if i < TRIED - 1 else 0.01, guessed=i < TRIED - 1, heard=True)
    assert not balance.resting


@pytest.mark.parametrize("n_lost", [0.05, 0.5])
def test_a_rest_is_as_long_as_what_was_lost_before_it_is_dear(n_lost: float):
    balance = Balance()
    for _ in range(3):
        n_steps = n_until_resting(balance, 0.0, n_lost)
        assert n_until_going(balance) == pytest.approx(n_steps * n_lost / LOSS, abs=1)


def test_what_one_of_several_sessions_lost_is_a_share_of_the_tokens_of_all():
    balance = Balance()
    n_steps = n_until_resting(balance, 0.0, 0.5, n_sessions=8)
    assert n_steps == TRIED_AMONG
    assert n_until_going(balance) == pytest.approx(n_steps * 0.5 / LOSS / 8, abs=1)


def test_what_was_brought_before_makes_a_rest_shorter():
    balance = Balance()
    for _ in range(TRIED):
        balance.step(2.0, 0.5, guessed=True, heard=False)
    n_steps = n_until_resting(balance, 0.0, 0.5)
    assert 0 < n_until_going(balance) <= n_steps * 0.5 / LOSS


def test_a_text_that_turns_hard_is_noticed_within_a_few_lines():
    balance = Balance()
    for _ in range(500):
        balance.step(1.0, 0.3, guessed=True, heard=False)
    assert 0 < n_until_resting(balance, 0.0, 0.1) < 100


def test_a_step_may_cost_what_models_have_brought_the_session_and_a_stake():
    balance = Balance()
    assert balance.allowance == STAKE
    balance.step(5.0, 1.0, guessed=True, heard=False)
    assert balance.allowance == STAKE + 4.0
    balance.step(0.0, 3.0, guessed=True, heard=False)
    assert balance.allowance == STAKE + 1.0
    balance.step(0.0, 3.0, guessed=True, heard=False)
    assert balance.allowance == STAKE


def test_after_a_rest_a_step_may_cost_a_stake():
    balance = Balance()
    balance.step(50.0, 1.0, guessed=True, heard=False)
    n_until_resting(balance, 0.0, 0.5)
    n_until_going(balance)
    assert balance.allowance == STAKE


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
        """Tokens, of steps that make one in a second."""
        return self.overhead.tokens(1.0, guessing=guessing)


def test_what_drafters_cost_is_assumed_until_steps_without_them_are_known():
    steps = Steps()
    steps.take(0.0005, told=1)
    assert steps.cost() == ASSUMED
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
    assert steps.cost() == ASSUMED
