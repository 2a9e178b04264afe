"""What guesses cost, counted in tokens."""

from __future__ import annotations

import math

import pytest

from server.engine.proposer import NOTHING, Planned, Proposal, TimedStep
from server.speculation.gating.balance import TRIED, Balance
from server.speculation.gating.costs import StepCosts
from server.speculation.gating.pricing import Pricing
from server.speculation.gating.widths import CELLS_STEP, PLAIN, Widths

SECONDS = {1: 0.040, 2: 0.070, 3: 0.082, 4: 0.092, 5: 0.102}  # of a step by rows, on two cores
N_CELLS = 64


def after_an_easy_text() -> Pricing:
    """Steps of late made three tokens in the time of a plain one."""
    pricing = Pricing(StepCosts(5, SECONDS), Widths({}), again=False)
    for _ in range(100):
        pricing.observe(Planned([NOTHING]), TimedStep(5, N_CELLS, 0.102, 0.102, 8, 1))
    assert pricing.throughput.value > 3 / SECONDS[1]
    return pricing


def test_guesses_are_priced_by_plain_steps_where_drafters_are_weighed():
    pricing = after_an_easy_text()
    price = pricing.step(1, 1, N_CELLS, may_pad=False)
    assert pricing.of_guess(price, 3) == pytest.approx((price.seconds[4] / price.plain_s - 1) / 3)
    assert pricing.plain_rate == pytest.approx(1 / price.plain_s)


def test_rows_that_are_evaluated_again_are_priced_by_plain_steps():
    """Of two sessions, one of which has three rows."""
    pricing = Pricing(StepCosts(8, {1: 10.0, 2: 12.0, 8: 24.0}), Widths({}), again=True)
    assert pricing.of_row_again(pricing.step(2, 2, N_CELLS, may_pad=False)) == 0.0
    price = pricing.step(2, 4, N_CELLS, may_pad=False)
    assert 2 * pricing.of_row_again(price) == pytest.approx(2 * (16.0 - 12.0) / 12.0)


@pytest.mark.parametrize(("n_right", "rests"), [(2, False), (1, True)])
def test_a_drafter_rests_where_plain_steps_are_faster(n_right: int, rests: bool):
    """Of three guesses two are right: three tokens in 92 ms, where plain steps take 120. Or one is right: two
    tokens, which plain steps make in 80."""
    pricing = after_an_easy_text()
    price = pricing.step(1, 1, N_CELLS, may_pad=False)
    balance = Balance()
    for _ in range(2 * TRIED):
        balance.step(n_right, 3 * pricing.of_guess(price, 3), guessed=True, heard=True)
    assert balance.resting is rests


def plain(n_cells: int, seconds: float) -> tuple[Planned, TimedStep]:
    return Planned([NOTHING]), TimedStep(1, n_cells, seconds, seconds, 1, 1)


def test_what_a_step_takes_without_company_is_learned_from_steps_without():
    pricing = Pricing(StepCosts(8, {1: 0.010}), Widths({}), again=False)
    assert pricing.calm_s(1, 100) == pytest.approx(0.010)
    for _ in range(40):  # beside a drafter on these cores
        pricing.observe(*plain(100, 0.030), calm=False)
        pricing.observe(*plain(2000, 0.045), calm=False)
    assert pricing.costs.curve(100)[1] == pytest.approx(0.030)
    assert pricing.calm_s(1, 100) == pytest.approx(0.010), "as the start measured"
    assert pricing.calm_s(1, 2000) == pytest.approx(0.015), "by as much as steps with company take longer"
    assert pricing.calm_s(2, 100) == pytest.approx(0.0105), "a width between or beyond those measured"
    price = pricing.step(1, 1, 100, may_pad=False)
    assert pricing.undrafted_s(price) == pytest.approx(0.010)
    for _ in range(40):
        pricing.observe(*plain(100, 0.020))
        pricing.observe(*plain(2000, 0.025))
    assert pricing.calm_s(1, 100) == pytest.approx(0.020)
    assert pricing.calm_s(1, 2000) == pytest.approx(0.025)
    assert Pricing(StepCosts(8), Widths({}), again=False).calm_s(1, 100) == math.inf


def test_without_company_there_is_one_account_of_steps():
    pricing = Pricing(StepCosts(8, {1: 0.010}), Widths({}), again=False)
    for _ in range(40):
        pricing.observe(*plain(100, 0.020))
    assert pricing.calm is pricing.costs
    assert pricing.calm_s(1, 100) == pytest.approx(0.020)


def test_guesses_of_a_padded_step_cost_what_padding_does():
    """Whatever is guessed: a step is padded to four rows for the sake of its guesses."""
    pricing = Pricing(StepCosts(5, SECONDS), Widths({1: 4.0, 4: 5.0}), again=False)
    price = pricing.padded(pricing.step(1, 1, N_CELLS, may_pad=True), [0.9, 0.8])
    assert price.width == 4
    for n in (1, 2, 3):
        assert n * pricing.of_guess(price, n) == pytest.approx(0.25)


@pytest.mark.parametrize("disturbed", [(), (0, 1), (7, 90, 150)])
def test_a_guess_is_charged_the_time_that_it_takes_outside_the_decode(disturbed: tuple[int, ...]):
    """300 µs for each session, 40 for each of its guesses, which would pay if they took nothing. What
    disturbs a step is no guess's cost."""
    pricing = Pricing(StepCosts(5, dict.fromkeys(range(1, 6), 0.001)), Widths({}), again=False)
    for i in range(200):
        n = i % 4
        proposal = Proposal(tuple(range(n)), tuple(range(-1, n - 1)), ("draft",) * n)
        outside_s = 2 * (300e-6 + 40e-6 * n) + (15e-3 if i in disturbed else 0.0)
        pricing.observe(Planned([proposal] * 2), TimedStep(2, N_CELLS, 0.001, 0.001 + outside_s, 2, 2))
    price = pricing.step(1, 1, N_CELLS, may_pad=False)
    assert price.guess_s == pytest.approx(40e-6, rel=0.25)
    worth = price.guess_s * price.rate
    flat = price._replace(seconds=[0.0, *[0.001] * 5])
    pricing.costs.observe(3, N_CELLS, 0.001)
    assert pricing.chosen(flat, [[1.1 * worth, 0.9 * worth]]) == [1]
    assert bool(disturbed) or price.guess_s == pytest.approx(40e-6)


def test_rows_of_prompts_are_no_tokens_that_plain_steps_make():
    pricing = after_an_easy_text()
    price = pricing.step(1, 3, N_CELLS, may_pad=False)
    assert pricing.of_guess(price, 1) == pytest.approx(price.seconds[4] / price.plain_s - 1)


def test_a_step_that_is_not_padded_has_no_guesses():
    pricing = Pricing(StepCosts(5, SECONDS), Widths({1: 4.0, 4: 5.0}, 1.0), again=False)
    price = pricing.padded(pricing.step(1, 1, N_CELLS, may_pad=True), [0.2])
    assert price.width == PLAIN
    assert pricing.chosen(price, [[0.2]]) == [0]


def test_plain_steps_are_measured_once_they_take_their_usual_time():
    """The first two after others are built anew and recorded."""
    pricing = Pricing(StepCosts(5, {1: 4.0}), Widths({1: 4.0, 4: 5.0}, 1.0), again=False)
    for decode_s in (9.0, 9.0, 4.0, 4.0):
        pricing.observe(Planned([NOTHING]), TimedStep(1, N_CELLS, decode_s, decode_s, 1, 1))
    assert pricing.costs.curve(N_CELLS)[1] == pytest.approx(4.0)


def test_what_a_step_may_take_is_that_of_the_width_it_is_padded_to():
    costs = StepCosts(4, {1: 1.0, 2: 1.8, 3: 1.9, 4: 2.0})
    assert Pricing(costs, Widths({}), again=False).seconds(2) == pytest.approx(costs.curve(0))
    pricing = Pricing(costs, Widths({1: 1.0, 4: 1.5, 8: 1.7}), again=False)
    assert pricing.seconds(1) == pytest.approx([*costs.curve(0)[:2], 1.5, 1.5, 1.5, 1.7, 1.7, 1.7, 1.7])
    assert pricing.seconds(4) == pytest.approx([*costs.curve(0)[:5], 1.7, 1.7, 1.7, 1.7])
    assert costs.curve(0) == pytest.approx(Pricing(costs, Widths({}), again=False).seconds(1)), "a copy"


def test_a_change_is_priced_by_the_cells_in_use():
    """A recorded graph is of one number of cells."""
    widths = Widths({1: 0.004, 4: 0.005}, 0.001)
    pricing = Pricing(StepCosts(5, {1: 0.004}), widths, again=False)
    pricing.step(1, 1, CELLS_STEP, may_pad=True)
    for seconds in (0.006, 0.005, 0.005):
        widths.stepped(4, seconds)
    widths.stepped(1, 0.004)
    for seconds in (0.0052, 0.005, 0.005):
        widths.stepped(4, seconds)
    recorded_s = widths.change_s(4)
    pricing.step(1, 1, 3 * CELLS_STEP, may_pad=True)
    assert recorded_s < widths.change_s(4)
