"""Widths: padding to the one that gains most, and changes that pay."""

from __future__ import annotations

import random

import pytest

from server.speculation.gating.widths import PLAIN, Offered, Widths

STEADY = {1: 0.005, 4: 0.0060, 8: 0.0062, 17: 0.0064}
CHANGE_S = 0.001  # of the first step; the second one is taken to cost as much
RATE = 200.0  # tokens per second: those of plain steps
SURE = [0.95**k for k in range(1, 17)]


class Scene:
    """Steps of one session on a machine where widths are as they are said to be."""

    def __init__(self, steady: dict[int, float] = STEADY, change_s: float = CHANGE_S) -> None:
        self.widths = Widths(steady, change_s)
        self.seconds = 0.0
        self._rows = [0, 0]
        self._change_s = change_s

    def step(self, *offers: Offered, n_rows: int = 1, rate: float = RATE) -> int:
        width = self.widths.choose(n_rows, self.widths.steady[1], offers, rate)
        self.widths.planned(width)
        rows = width or n_rows
        decode_s = STEADY.get(rows, 0.005) + self._change_s * (self._rows != [rows, rows])
        self._rows = [rows, self._rows[0]]
        self.seconds += decode_s
        self.widths.stepped(rows, decode_s)
        return width

    def steps(self, *offers: list[float], n: int = 40) -> list[int]:
        return [self.step(Offered(offers[i % len(offers)])) for i in range(n)]


def test_nothing_is_padded_where_a_change_costs_nothing():
    assert not Widths({}).pays


@pytest.mark.parametrize(
    ("offers", "width"),
    [
        pytest.param([SURE], 17, id="many good guesses"),
        pytest.param([SURE[:3]], 4, id="few good guesses"),
        pytest.param([SURE[:7], SURE[:6]], 8, id="some"),
        pytest.param([SURE[:0]], PLAIN, id="none"),
        pytest.param([[0.02, 0.01]], PLAIN, id="bad ones"),
        pytest.param([[0.5], *[[]] * 9], PLAIN, id="now and then"),
    ],
)
def test_the_width_that_gains_most(offers: list[list[float]], width: int):
    assert set(Scene().steps(*offers)[20:]) == {width}


def test_many_good_guesses_are_taken_at_once():
    assert Scene().step(Offered(SURE)) == 17


def test_few_are_taken_once_they_would_have_paid_the_way_there_and_back():
    """0.5 tokens for 0.2 more of them a step; there and back take 0.8."""
    gain = 0.5 - RATE * (STEADY[4] - STEADY[1])
    there_and_back = 2 * RATE * 2 * CHANGE_S
    assert Scene().steps([0.5], n=9).index(4) == there_and_back // gain


@pytest.mark.parametrize(("most_s", "widths"), [(1.0, [4, 4]), (0.004, [PLAIN] * 2)])
def test_where_its_loss_is_bounded_a_change_is_made_at_once_or_never(most_s: float, widths: list[int]):
    """A step gains 0.7 tokens by four rows. There and back take 4 ms, and the step itself 1 ms more."""
    scene = Scene()
    scene.widths.most_s = most_s
    assert scene.steps([0.9], n=2) == widths
    assert Scene().steps([0.9], n=2) == [PLAIN, 4], "without a bound once it would have paid there and back"


def test_after_a_prompt_a_width_has_to_pay_one_change_only():
    """A plain step is a change, too. A step gains 0.7 tokens by four rows, and a change costs 0.4."""
    scene = Scene()
    offer = Offered([0.9])
    assert scene.step(offer) == PLAIN
    scene.widths.interrupted()
    assert scene.widths.seconds(1, STEADY[1], RATE)[4] == STEADY[4] + scene.widths.change_s(4)
    assert scene.step(offer) == 4
    scene.widths.interrupted()
    assert scene.step(Offered([0.5])) == PLAIN, "0.3 tokens"


def test_after_a_prompt_steps_without_guesses_are_plain_at_once():
    scene = Scene()
    scene.steps(SURE, n=5)
    assert scene.step(Offered([])) == 17
    scene.widths.interrupted()
    assert scene.step(Offered([])) == PLAIN


def test_steps_without_guesses_are_padded_until_that_has_cost_as_much_as_a_change():
    scene = Scene()
    scene.steps(SURE, n=5)
    lost_s = STEADY[17] - STEADY[1]
    n_padded = scene.steps([], n=9).index(PLAIN)
    assert n_padded * lost_s < scene.widths.change_s(1) < (n_padded + 1) * lost_s + 1e-9


@pytest.mark.parametrize("seed", range(4))
def test_no_mixture_of_texts_is_slower_than_plain_steps_by_more_than_a_twentieth(seed: int):
    """Guesses are right as often as they are said to be."""
    rng, scene, n_tokens, n_guesses = random.Random(seed), Scene(), 0, 0
    for i in range(3000):
        if i % 50 == 0:
            n_guesses = rng.choice([0, 0, 1, 2, 8])
        offer = [0.6**k for k in range(1, n_guesses + 1)] if rng.random() < 0.5 else []
        width = scene.step(Offered(offer))
        n_tokens += 1
        for probability in ([0.6] * len(offer))[: max(0, width - 1)]:
            if rng.random() > probability:
                break
            n_tokens += 1
    assert n_tokens / scene.seconds > 0.95 / STEADY[1]


def drafted(scene: Scene, acceptance: float, each_s: float) -> int:
    """A step of a draft model in the lead, which guesses where there are rows for it and that pays. each_s:
    seconds of a guess."""
    paths = [acceptance**k for k in range(1, 17)]
    offer = Offered([path for path in paths if path > RATE * each_s], each_s)
    has_rows = len(scene.widths.seconds(1, 0.005, RATE)) > 2
    return scene.step(offer) if has_rows else scene.step(Offered(()), offer)


@pytest.mark.parametrize(("each_s", "width"), [(1 / 16_000, 17), (1 / 800, 8), (1 / 200, PLAIN)])
def test_what_steps_wait_for_has_to_pay_too(each_s: float, width: int):
    scene = Scene()
    scene.steps(SURE, n=3)
    assert {drafted(scene, 0.8, each_s) for _ in range(30)} <= {17, width}
    assert drafted(scene, 0.8, each_s) == width


def test_guesses_come_back_when_they_would_pay():
    """The draft model makes no guesses in plain steps: what it would probably make decides."""
    scene = Scene()
    for acceptance, width in ((0.2, PLAIN), (0.95, 17), (0.2, PLAIN), (0.95, 17)):
        assert [drafted(scene, acceptance, 0.0005) for _ in range(30)][-1] == width


def test_what_guesses_took_is_no_reason_to_throw_them_away():
    scene = Scene()
    scene.steps(SURE, n=3)
    for _ in range(3):
        assert scene.step(Offered([0.9, 0.8], 0.01)) == 17
    assert scene.step(Offered(())) == PLAIN


def test_a_width_is_for_as_many_sessions_as_it_was_found_for():
    scene = Scene()
    assert scene.steps([0.5], n=3) == [PLAIN, PLAIN, 4]
    scene = Scene()
    scene.steps([0.5], n=2)
    assert scene.step(Offered([0.5]), n_rows=2) == PLAIN
    assert scene.steps([0.5], n=3) == [PLAIN, PLAIN, 4]


def test_guesses_are_free_up_to_the_width_and_cost_a_change_beyond_it():
    scene = Scene()
    assert scene.widths.seconds(1, 0.005, RATE) == [0.005] * 2, "after plain steps there are no rows for them"
    scene.steps([0.9, 0.8, 0.7], n=5)
    assert scene.widths.width == 4
    seconds = scene.widths.seconds(1, 0.005, RATE)
    assert seconds[:5] == pytest.approx([0.006] * 5, rel=0.02), "plain steps are a change away, too"
    assert seconds[5] == pytest.approx(0.0062 + scene.widths.change_s(8))
    assert len(seconds) == 18


def test_what_a_change_costs_is_measured():
    scene = Scene(change_s=0.003)
    scene.widths = Widths(STEADY, CHANGE_S)
    for _ in range(40):
        scene.steps(SURE, n=3)
        scene.steps([], n=30)
    assert scene.widths.change_s(1) == pytest.approx(2 * 0.003, rel=0.1)
    assert scene.widths.change_s(17) == pytest.approx(2 * 0.003, rel=0.1)


def test_where_plain_steps_are_nearly_free_to_come_back_to_widths_have_to_pay_the_way_there():
    """A step gains 0.3 tokens by four rows; there and back take 0.8, or 0.4 where the way back is free."""
    scene = Scene()
    scene.widths = Widths(STEADY, CHANGE_S, single_s=0.0)
    assert scene.steps([0.5], n=9).index(4) == 1
    scene.steps(SURE, n=3)
    assert scene.step(Offered([])) == PLAIN, "at once"


def test_the_width_that_was_recorded_is_cheaper_to_come_back_to_than_others():
    """Which is measured: here its first step costs a tenth."""
    widths = Widths(STEADY, CHANGE_S)
    for _ in range(40):
        for rows, first_s in (
            (17, CHANGE_S),
            (1, 0.0),
            (17, 0.0001),
            (1, 0.0),
            (8, CHANGE_S),
            (1, 0.0),
            (8, 0.0001),
        ):
            for extra_s in (first_s, 0.0, 0.0):
                widths.stepped(rows, STEADY[rows] + extra_s)
    assert widths.change_s(8) == pytest.approx(0.0001, rel=0.2), "it was the last one"
    assert widths.change_s(17) == widths.change_s(4) == pytest.approx(CHANGE_S, rel=0.2)
    assert widths.change_s(1) == pytest.approx(0.0, abs=1e-5)


def test_after_a_prompt_a_step_is_no_measure_of_its_width():
    widths = Widths(STEADY, CHANGE_S)
    for _ in range(9):
        widths.stepped(1, 0.005)
    assert widths.is_settled(1)
    widths.interrupted()
    assert not widths.is_settled(1)
    for seconds in (0.008, 0.009, 0.005):
        widths.stepped(1, seconds)
    assert widths.steady[1] == pytest.approx(0.005)
    assert widths.is_settled(1)


def test_a_width_that_turns_out_slow_is_left():
    scene = Scene()
    assert scene.steps(SURE)[-1] == 17
    widths = list[int]()
    for _ in range(60):
        widths.append(scene.widths.choose(1, 0.005, [Offered(SURE[:8])], RATE))
        scene.widths.planned(widths[-1])
        scene.widths.stepped(widths[-1], 0.02 if widths[-1] == 17 else STEADY[widths[-1]])
    assert widths[0] == 17
    assert widths[-1] == 8


def test_one_outlier_counts_little():
    widths = Widths(STEADY, CHANGE_S)
    for seconds in (0.007, 0.007, 5.0):
        widths.stepped(8, seconds)
    assert widths.steady[8] < 0.0072
    assert widths.steady[17] == pytest.approx(STEADY[17], rel=0.01)
    assert widths.change_s(17) < 2 * CHANGE_S


def test_a_longer_context_makes_all_widths_slower():
    widths = Widths({1: 0.005, 17: 0.0065}, CHANGE_S)
    for _ in range(600):
        widths.stepped(17, 0.0095)
    assert widths.steady[1] == pytest.approx(0.008, rel=0.02)


def test_a_width_that_was_slow_is_tried_again():
    """Others had the machine for a while, say: nobody would measure it otherwise."""
    widths = Widths({1: 0.005, 17: 0.0065}, CHANGE_S)
    for _ in range(60):
        widths.stepped(17, 0.05)
    assert widths.steady[17] > 0.03
    for _ in range(600):
        widths.stepped(1, 0.005)
    assert widths.steady[17] == pytest.approx(0.0065, rel=0.05)


@pytest.mark.parametrize("rate", [RATE, 4 * RATE])
def test_what_the_text_before_made_is_no_reason_to_leave_guesses(rate: float):
    """At four times the rate of plain steps no step here would be worth its time."""
    scene = Scene()
    assert [scene.step(Offered([0.6, 0.3]), rate=rate) for _ in range(6)][-1] == 4


@pytest.mark.parametrize(("n_kept", "width"), [(1, PLAIN), (12, 4)])
def test_after_a_prompt_a_change_is_spread_over_as_many_steps_as_widths_are_kept(n_kept: int, width: int):
    """A step of four rows gains 0.1 tokens by a plain one, and to change to it takes 0.4. To leave a
    width takes two steps more."""
    scene = Scene()
    for _ in range(20):
        scene.widths.interrupted()
        scene.steps(SURE[:3], n=n_kept)
        scene.steps([], n=20)
    scene.widths.interrupted()
    assert scene.step(Offered([0.3])) == width
    scene.widths.interrupted()
    open_to = len(scene.widths.seconds(1, 0.005, RATE)) - 1
    assert open_to == 17, "a draft model has rows in any case"


def test_more_sessions_than_the_widest_step_has_rows_are_not_padded():
    scene = Scene()
    assert scene.widths.choose(40, 0.02, [Offered(SURE)], RATE) == PLAIN
    assert len(scene.widths.seconds(40, 0.02, RATE)) == 41
