"""What the lead makes per second, and what its Python takes outside decodes."""

from __future__ import annotations

import math

import pytest

from server.engine.proposer import NOTHING, Proposal, StepTiming
from server.speculation.rates import ASSUMED, KNOWN, PythonTimes, Rates
from server.speculation.shape_times import ShapeTimes
from server.speculation.step import DraftPlan
from server.speculation.step_times import StepTimes

N_CELLS = 64


def rates_of(times: StepTimes) -> Rates:
    return Rates(times)


def plain(n_cells: int, seconds: float) -> tuple[DraftPlan, StepTiming]:
    return DraftPlan([NOTHING]), StepTiming(1, n_cells, seconds, seconds, 1, 1)


def test_lone_steps_teach_lone_times():
    rates = rates_of(StepTimes(8, {1: 0.010}))
    assert rates.uncrowded_s(1, 100) == pytest.approx(0.010)
    for _ in range(40):  # beside a drafter on these cores
        rates.learn(*plain(100, 0.030), uncrowded=False)
        rates.learn(*plain(2000, 0.045), uncrowded=False)
    assert rates.times.curve(100)[1] == pytest.approx(0.030)
    assert rates.uncrowded_s(1, 100) == pytest.approx(0.010), "as the start measured"
    assert rates.uncrowded_s(1, 2000) == pytest.approx(0.015), "by as much as steps with company take longer"
    assert rates.uncrowded_s(2, 100) == pytest.approx(0.010), "a width beyond the only one measured"
    for _ in range(40):
        rates.learn(*plain(100, 0.020), uncrowded=True)
        rates.learn(*plain(2000, 0.025), uncrowded=True)
    assert rates.uncrowded_s(1, 100) == pytest.approx(0.020)
    assert rates.uncrowded_s(1, 2000) == pytest.approx(0.025)
    assert rates_of(StepTimes(8)).uncrowded_s(1, 100) == math.inf


def test_alone_there_is_one_account():
    rates = rates_of(StepTimes(8, {1: 0.010}))
    for _ in range(40):
        rates.learn(*plain(100, 0.020), uncrowded=True)
    assert rates.uncrowded is rates.times
    assert rates.uncrowded_s(1, 100) == pytest.approx(0.020)


@pytest.mark.parametrize("disturbed", [(), (0, 1), (7, 90, 150)])
def test_a_guess_takes_time_outside_the_decode(disturbed: tuple[int, ...]):
    """It takes 300 µs for each session and 40 for each guess. A disturbance is no guess's cost."""
    rates = rates_of(StepTimes(5, dict.fromkeys(range(1, 6), 0.001)))
    for i in range(200):
        n = i % 4
        proposal = Proposal(tuple(range(n)), tuple(range(-1, n - 1)), ("draft",) * n)
        outside_s = 2 * (300e-6 + 40e-6 * n) + (15e-3 if i in disturbed else 0.0)
        timing = StepTiming(2, N_CELLS, 0.001, 0.001 + outside_s, 2, 2)
        rates.learn(DraftPlan([proposal] * 2, n_guesses=2 * n), timing, uncrowded=True)
    assert rates.guess_s == pytest.approx(40e-6, rel=0.25)
    assert bool(disturbed) or rates.guess_s == pytest.approx(40e-6)


def test_settled_plain_steps_are_measured():
    """The first two after others are built anew and recorded."""
    rates = rates_of(StepTimes(5, {1: 4.0}, ShapeTimes({1: 4.0, 4: 5.0}, 1.0)))
    for decode_s in (9.0, 9.0, 4.0, 4.0):
        timing = StepTiming(1, N_CELLS, decode_s, decode_s, 1, 1)
        rates.learn(DraftPlan([NOTHING]), timing, uncrowded=True)
    assert rates.times.curve(N_CELLS)[1] == pytest.approx(4.0)


def test_step_time_uses_padded_width():
    known = {1: 1.0, 2: 1.8, 3: 1.9, 4: 2.0}
    times = StepTimes(4, known)
    assert times.by_guesses(2, 0) == pytest.approx(times.curve(0))
    padded = StepTimes(4, known, ShapeTimes({1: 1.0, 4: 1.5, 8: 1.7}))
    assert padded.by_guesses(1, 0) == pytest.approx([*times.curve(0)[:2], *[1.5] * 3, *[1.7] * 4])
    assert padded.by_guesses(4, 0) == pytest.approx([*times.curve(0)[:5], *[1.7] * 4])
    assert padded.curve(0) == pytest.approx(times.curve(0)), "a copy"


def test_stopped_process_decode_counts_usual():
    rates = rates_of(StepTimes(4, {1: 1.0}))
    assert rates.undisturbed_s(StepTiming(1, 0, 3.0, 3.0, 1, 1)) == 3.0
    assert rates.undisturbed_s(StepTiming(1, 0, 60.0, 60.0, 1, 1)) == 1.0


class Steps:
    """Observations of steps whose decodes take no time."""

    def __init__(self) -> None:
        self.python = PythonTimes()

    def take(
        self, outside_s: float, n: int = KNOWN, *, told: int = 0, of: int = 1, guessing: bool = False
    ) -> None:
        """Take n steps of `of` sessions, of which drafters have `told`."""
        for _ in range(n):
            timing = StepTiming(of, 0, 0.0, outside_s, of, of)
            self.python.observe_messages(timing, outside_s, told, guessing=guessing)

    def cost(self, *, guessing: bool = False) -> float:
        """Return the cost in tokens, of steps that make one in a second."""
        return self.python.drafters_cost(1.0, guessing=guessing)


def test_drafter_cost_is_assumed_first():
    steps = Steps()
    steps.take(0.0005, told=1)
    assert steps.cost() == ASSUMED
    steps.take(0.0002)
    assert steps.cost() == 0.0, "nobody has a session"
    steps.take(0.0005, told=1)
    assert steps.cost() == pytest.approx(0.0003)
    steps.take(0.0001, told=1, guessing=True)
    assert steps.cost(guessing=True) == 0.0


def test_first_steps_measure_no_drafters():
    steps = Steps()
    steps.take(0.0002)
    for outside_s in (0.015, 0.003, *[0.0004] * KNOWN):
        steps.take(outside_s, 1, told=1, guessing=True)
    assert steps.cost(guessing=True) == pytest.approx(0.0002)


def test_others_guesses_measure_no_drafters():
    steps = Steps()
    steps.take(0.0002)
    steps.take(0.0009, guessing=True)
    steps.take(0.0003, told=1, guessing=True)
    assert steps.cost(guessing=True) == pytest.approx(0.0001)


@pytest.mark.parametrize(("told", "each_s"), [(64, 0.00003), (4, 16 * 0.00003)])
def test_drafter_cost_falls_on_its_sessions(told: int, each_s: float):
    steps = Steps()
    steps.take(64 * 0.00002, of=64)
    steps.take(64 * 0.00005, of=64, told=told)
    assert steps.cost() == pytest.approx(each_s)


def test_few_sessions_measure_few_only():
    steps = Steps()
    steps.take(0.0004)
    steps.take(64 * 0.00005, of=64, told=4)
    assert steps.cost() == ASSUMED
