"""What steps cost, learned."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.machines import REPACKED
from server.speculation.hits import HitRates
from server.speculation.potential import potential
from server.speculation.step_times import REFRESH, StepTimes


def known(max_rows: int, seconds: dict[int, float]) -> list[float]:
    """Return the curve after these steps."""
    costs = StepTimes(max_rows)
    for rows, spent in seconds.items():
        for _ in range(3):
            costs.observe(rows, 0, spent)
    for _ in range(8):
        costs.observe(1, 0, seconds[1])
    return costs.curve(0)


def test_nothing_known_costs_nothing():
    assert StepTimes(4).curve(0) == [0.0] * 5


def test_unmeasured_widths_lie_on_line():
    assert known(8, {1: 1.0, 4: 2.5, 6: 2.7}) == pytest.approx([0, 1.0, 1.5, 2.0, 2.5, 2.6, 2.7, 3.04, 3.38])


def test_dear_width_costs_wider_one():
    assert known(4, {1: 1.0, 2: 3.0, 3: 2.0, 4: 2.0}) == [0.0, 1.0, 2.0, 2.0, 2.0]


def test_each_measured_width_keeps_its_share():
    """Steps of four and eight rows do not tell what five take, where four are multiplied at once."""
    measured = {n: REPACKED.step_s(n) for n in range(1, 10)}
    times = StepTimes(9, measured)
    for _ in range(20):
        for rows in (1, 4, 8):
            times.observe(rows, 0, 2 * measured[rows])
    curve = times.curve(0)
    assert [curve[n] for n in (1, 4, 8)] == pytest.approx([2 * measured[n] for n in (1, 4, 8)])
    assert curve[5] > curve[4] + 0.4 * (curve[8] - curve[4]), "not a fourth of the way to eight"
    assert curve[6] < curve[7] == curve[8], "seven are padded to eight"


def test_step_pads_to_fastest_rows():
    costs = StepTimes(20, {1: 1.0, 2: 2.7, 4: 3.8, 7: 5.0, 8: 3.7, 15: 5.9, 16: 5.7})
    padded = [costs.padded(n, 0) for n in range(1, 22)]
    # 3.8 is too little more than 3.7, as 5.9 than 5.7; 17 and more were not measured
    assert padded == [1, 2, 3, 4, 8, 8, 8, *range(8, 21), 21]


def test_padding_follows_recent_times():
    costs = StepTimes(8, {1: 1.0, 3: 3.0, 4: 2.0})
    for own, wider, width in ((2.0, 2.0, 3), (4.0, 2.0, 4), (4.0, 5.0, 3)):
        for _ in range(50):
            costs.observe(3, 0, own)
            costs.observe(4, 0, wider)
        assert costs.padded(3, 0) == width


def test_steps_alone_pad_nothing():
    """A busy moment slowed steps of three rows: padded ones would not show that it is over."""
    costs = StepTimes(8, {1: 1.0, 3: 2.0, 4: 2.0})
    for _ in range(50):
        costs.observe(3, 0, 4.0)
        costs.observe(4, 0, 2.0)
    assert costs.padded(3, 0) == 3


def test_long_context_padding_needs_measurement():
    """With few cells four rows are quicker than three, with many not, which only unpadded steps show."""
    costs, many = StepTimes(8, {1: 1.0, 3: 3.0, 4: 2.0}), 4096
    assert costs.padded(3, many) == 4  # as calibrated
    widths = list[int]()
    for _ in range(4 * REFRESH):
        widths.append(costs.padded(3, many))
        costs.observe(widths[-1], many, {3: 3.1, 4: 4.0}[widths[-1]])
    assert set(widths[-REFRESH:]) == {3}


def test_padding_steps_go_rarely_without():
    """Two unpadded steps show it."""
    costs, many = StepTimes(8, {1: 1.0, 3: 3.0, 4: 2.0}), 4096
    widths = list[int]()
    for _ in range(400):
        widths.append(costs.padded(3, many))
        costs.observe(widths[-1], many, {3: 3.0, 4: 2.0}[widths[-1]])
    assert widths.count(3) == 2
    assert set(widths[-8 * REFRESH :]) == {4}


def test_nothing_known_pads_nothing():
    assert [StepTimes(4).padded(n, 0) for n in range(1, 7)] == list(range(1, 7))


def test_outlier_moves_estimates_little():
    costs = StepTimes(2)
    for _ in range(50):
        costs.observe(1, 0, 1.0)
    costs.observe(1, 0, 100.0)
    assert costs.curve(0)[1] < 1.05
    for _ in range(100):
        costs.observe(1, 0, 2.0)
    assert costs.curve(0)[1] == pytest.approx(2.0, rel=0.05)


def test_noise_around_a_step_is_averaged():
    noise, costs = random.Random(1), StepTimes(2)
    for _ in range(500):
        costs.observe(2, 0, 1.0 + noise.uniform(-0.2, 0.2))
    assert costs.curve(0)[2] == pytest.approx(1.0, rel=0.06)


def test_longer_context_scales_known_times():
    costs = StepTimes(4)
    for rows, seconds in ((1, 1.0), (4, 2.0)):
        for _ in range(3):
            costs.observe(rows, 0, seconds)
    for _ in range(10):
        costs.observe(1, 5000, 3.0)
    assert costs.curve(5000)[4] == pytest.approx(6.0)
    assert costs.curve(10)[4] == pytest.approx(2.0)


def test_first_steps_correct_busy_calibration():
    costs = StepTimes(16, {1: 1.0, 2: 3.0, 4: 3.5, 8: 4.0, 16: 5.0})
    for _ in range(4):
        costs.observe(1, 0, 1.0)
    for _ in range(12):
        costs.observe(8, 0, 2.0)
    curve = costs.curve(0)
    assert curve[8] == pytest.approx(2.0)
    assert curve[16] == pytest.approx(2.5)
    assert curve[4] <= 2.0


def test_unconfirmed_width_is_tried():
    costs = StepTimes(4, {1: 1.0, 4: 2.0})
    assert costs.curve(0)[1] == 1.0
    assert costs.curve(0)[4] == pytest.approx(1.8)
    assert costs.knows(4)
    assert costs.table() == {1: 1.0, 4: 2.0}


def test_busy_wide_steps_are_forgotten():
    """Otherwise nobody guesses again, and no wide step corrects the time."""
    calibrated = {1: 1.0, 2: 1.5, 4: 2.0, 8: 3.0}
    costs = StepTimes(8, calibrated)
    for _ in range(12):
        costs.observe(1, 0, 1.0)
        for rows in (2, 4, 8):
            costs.observe(rows, 0, 20.0)
    assert potential(costs.curve(0), 1) == 1.0
    for _ in range(1_500):
        costs.observe(1, 0, 1.0)
    assert potential(costs.curve(0), 1) == potential(StepTimes(8, calibrated).curve(0), 1) > 1.3
    costs.observe(4, 0, 2.2)  # counts as the first step of its width
    for _ in range(REFRESH):
        costs.observe(1, 0, 1.0)
    assert costs.curve(0)[4] == pytest.approx(2.2)


def test_width_remembers_thousand_steps():
    costs = StepTimes(4, {1: 1.0, 4: 2.0})
    for _ in range(3):
        costs.observe(4, 0, 4.0)
    for _ in range(900):
        costs.observe(1, 0, 1.0)
    assert costs.curve(0)[4] > 3.0


@given(st.lists(st.tuples(st.integers(1, 8), st.integers(0, 9000), st.floats(0.001, 10.0)), max_size=60))
def test_a_curve_never_falls(observed: list[tuple[int, int, float]]):
    costs = StepTimes(8)
    for rows, cells, seconds in observed:
        costs.observe(rows, cells, seconds)
    for cells in (0, 300, 5000):
        curve = costs.curve(cells)
        assert curve == sorted(curve)
        assert len(curve) == 9


def test_acceptance_follows_stated_confidence():
    chance, acceptance = random.Random(2), HitRates()
    for _ in range(600):
        acceptance.observe("honest", 230, chance.random() < 0.9)
        acceptance.observe("honest", 100, chance.random() < 0.3)
        acceptance.observe_best("honest", 200, chance.random() < 0.6)
        acceptance.observe("liar", 255, hit=False)
    assert acceptance.probability("honest", 232) == pytest.approx(0.9, abs=0.12)
    assert acceptance.probability("honest", 99) == pytest.approx(0.3, abs=0.2)
    assert acceptance.probability("liar", 255) < 0.01
    assert acceptance.mean("honest") == pytest.approx(0.6, abs=0.2)


def test_new_source_is_trusted_briefly():
    acceptance = HitRates()
    assert 0.8 < acceptance.probability("new", 250) < 0.95
    for _ in range(8):
        acceptance.observe("new", 255, hit=False)
    assert acceptance.probability("new", 255) < 0.35


def test_table_reads_during_learning():
    costs = StepTimes(64)
    others = iter(range(10, 60))

    class Width(int):
        """A dict key that has another width measured whenever it is looked up."""

        def __hash__(self) -> int:
            if learning:
                costs.observe(next(others), 10, 1.0)
            return int(self)

    learning = False
    for rows in (1, 2, 3):
        costs.observe(Width(rows), 10, 1.0)
    learning = True
    table = costs.table()
    learning = False
    assert {1, 2, 3} <= set(table)
