"""Widths: padding to the one that gains most, and changes that pay."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from server.speculation.gating.widths import CELLS_STEP, PLAIN, Widths

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

    def step(self, offer: Sequence[float], *, n_rows: int = 1, rate: float = RATE) -> int:
        return self._take(self.widths.choose(n_rows, self.widths.steady[1], offer, rate), n_rows)

    def stay(self) -> bool:
        """Take a plain step if none has to be chosen. Returns whether that is so."""
        stays = self.widths.stays_plain(1, 0)
        if stays:
            self._take(PLAIN, 1)
        return stays

    def _take(self, width: int, n_rows: int) -> int:
        self.widths.planned(width, width or n_rows)
        rows = width or n_rows
        decode_s = STEADY.get(rows, 0.005) + self._change_s * (self._rows != [rows, rows])
        self._rows = [rows, self._rows[0]]
        self.seconds += decode_s
        self.widths.stepped(rows, decode_s)
        return width

    def steps(self, *offers: Sequence[float], n: int = 40) -> list[int]:
        return [self.step(offers[i % len(offers)]) for i in range(n)]


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
    assert Scene().step(SURE) == 17


def test_a_change_is_spread_over_as_many_steps_as_widths_are_kept():
    """0.5 tokens for 0.2 more of them a step; there and back take 0.8 of them at once."""
    scene = Scene()
    assert scene.step([0.5]) == PLAIN
    scene.steps(SURE[:3], n=12)
    scene.steps([], n=3)
    assert scene.step([0.5]) == 4, "the width before was kept for 12 steps"


@pytest.mark.parametrize(("most_s", "width"), [(1.0, 4), (0.0051, 4), (0.0049, PLAIN)])
def test_a_bounded_loss_bounds_the_change(most_s: float, width: int):
    """There and back take 4 ms, and the step itself 1 ms more."""
    scene = Scene()
    scene.step([])
    scene.widths.most_s = most_s
    assert scene.step(SURE[:3]) == width
    assert scene.widths.charge_s(4, 1) == pytest.approx(0.0 if width else 4 * CHANGE_S)


def test_after_a_prompt_a_width_has_to_pay_one_change_only():
    """A plain step is a change, too. A step gains 0.7 tokens by four rows, and a change costs 0.4."""
    scene = Scene()
    scene.steps([], n=3)
    assert scene.widths.seconds(1, STEADY[1])[4] == STEADY[4] + 2 * scene.widths.change_s(4)
    scene.widths.interrupted()
    assert scene.widths.seconds(1, STEADY[1])[4] == STEADY[4] + scene.widths.change_s(4)
    assert scene.step([0.5]) == PLAIN, "0.3 tokens"
    scene.widths.interrupted()
    assert scene.step([0.9]) == 4


def test_where_prompts_end_all_runs_a_width_has_no_way_back_to_pay():
    """Then it pays from the first step on, though guesses are there for one step at a time."""
    scene, offer = Scene(), [0.5]
    assert scene.step(offer) == PLAIN
    for _ in range(20):
        scene.widths.interrupted()
        scene.step(offer)
    scene.widths.interrupted()
    assert scene.widths.seconds(1, STEADY[1])[:5] == pytest.approx(
        [STEADY[1]] * 2 + [STEADY[4]] * 3, rel=0.05
    )
    assert scene.step(offer) == 4


def test_plain_steps_of_another_number_of_sessions_are_a_change_too():
    """Nine sessions, then eight: a step of 17 rows costs no change, one of eight does."""
    scene = Scene()
    scene.widths.planned(PLAIN, 9)
    assert scene.widths.seconds(8, 0.0062)[9] == pytest.approx(STEADY[17] + scene.widths.change_s(8))
    scene.widths.planned(17, 17)
    assert scene.widths.seconds(8, 0.0062)[8] == pytest.approx(STEADY[17])
    assert scene.widths.seconds(8, 0.0062)[17] == pytest.approx(STEADY[17])


def test_after_a_prompt_steps_without_guesses_are_plain_at_once():
    scene = Scene()
    scene.steps(SURE, n=5)
    assert scene.step([]) == 17
    scene.widths.interrupted()
    assert scene.step([]) == PLAIN


@pytest.mark.parametrize(("n_without", "n_padded"), [(1, 1), (12, 0)])
def test_steps_without_guesses_are_padded_if_they_are_few(n_without: int, n_padded: int):
    """Padding takes 1.4 ms, and a change 2."""
    scene = Scene()
    for _ in range(20):
        scene.steps(SURE, n=5)
        scene.steps([], n=n_without)
    scene.steps(SURE, n=5)
    assert scene.steps([], n=n_without).count(17) == n_padded


def test_a_run_that_is_longer_than_others_is_left_or_joined_in_the_end():
    """Guesses are there in every other step at first, so that no change seems to pay."""
    scene = Scene()
    scene.steps([0.6, 0.3], [], n=40)
    assert scene.steps([0.6, 0.3], n=9)[-1] == 4
    scene.steps([0.6, 0.3], [], n=40)
    assert scene.steps([], n=9)[-1] == PLAIN


@pytest.mark.parametrize("seed", range(4))
def test_no_mixture_of_texts_is_slower_than_plain_steps_by_more_than_a_twentieth(seed: int):
    """Guesses are right as often as they are said to be."""
    rng, scene, n_tokens, n_guesses = random.Random(seed), Scene(), 0, 0
    for i in range(3000):
        if i % 50 == 0:
            n_guesses = rng.choice([0, 0, 1, 2, 8])
        offer = [0.6**k for k in range(1, n_guesses + 1)] if rng.random() < 0.5 else []
        width = scene.step(offer)
        n_tokens += 1
        for probability in ([0.6] * len(offer))[: max(0, width - 1)]:
            if rng.random() > probability:
                break
            n_tokens += 1
    assert n_tokens / scene.seconds > 0.95 / STEADY[1]


def test_guesses_are_free_up_to_the_width_and_cost_a_change_beyond_it():
    scene = Scene()
    scene.step([])
    there_and_back_s = 2 * scene.widths.change_s(4)
    assert scene.widths.seconds(1, 0.005)[:3] == pytest.approx([0.005] * 2 + [0.006 + there_and_back_s])
    scene.steps([0.9, 0.8, 0.7], n=5)
    assert scene.widths.width == 4
    seconds = scene.widths.seconds(1, 0.005)
    assert seconds[:5] == pytest.approx([0.006] * 5, rel=0.02), "plain steps are a change away, too"
    assert seconds[5] == pytest.approx(0.0062 + scene.widths.change_s(8) / 5), "this run has five steps"
    assert len(seconds) == 18


def test_what_a_change_costs_is_measured():
    scene = Scene(change_s=0.003)
    scene.widths = Widths(STEADY, CHANGE_S)
    for _ in range(40):
        scene.steps(SURE, n=3)
        scene.steps([], n=30)
    assert scene.widths.change_s(17) == pytest.approx(2 * 0.003, rel=0.1)


def test_a_width_that_is_recorded_is_cheaper_to_come_back_to():
    """With as many cells: the graph of one shape is of one number of them, in steps of llama.cpp's."""
    widths = Widths(STEADY, CHANGE_S)
    for n_cells in range(0, 60 * CELLS_STEP, CELLS_STEP):
        widths.use(n_cells)
        for first_s, second_s in ((0.002, 0.004), (0.001, 0.0)):
            for rows in (8, 1):
                for extra_s in (first_s, second_s, 0.0):
                    widths.stepped(rows, STEADY[rows] + extra_s)
    assert widths.change_s(8) == widths.change_s(1) == pytest.approx(0.001, rel=0.1)
    assert widths.change_s(17) == pytest.approx(0.006, rel=0.1)
    widths.use(60 * CELLS_STEP)
    assert widths.change_s(8) == widths.change_s(17)
    widths.use(59 * CELLS_STEP + 1)
    assert widths.change_s(8) == pytest.approx(0.001, rel=0.1)


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
        widths.append(scene.widths.choose(1, 0.005, SURE[:8], RATE))
        scene.widths.planned(widths[-1], widths[-1] or 1)
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
    assert [scene.step([0.6, 0.3], rate=rate) for _ in range(6)][-1] == 4


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
    assert scene.step([0.3]) == width
    scene.widths.interrupted()
    open_to = len(scene.widths.seconds(1, 0.005)) - 1
    assert open_to == 17, "a draft model has rows in any case"


def test_more_sessions_than_the_widest_step_has_rows_are_not_padded():
    scene = Scene()
    assert scene.widths.choose(40, 0.02, SURE, RATE) == PLAIN
    assert len(scene.widths.seconds(40, 0.02)) == 41


@pytest.mark.parametrize("seed", range(20))
def test_a_step_without_guesses_that_stays_plain_is_one_that_would_be_chosen(seed: int):
    """Two machines have the same texts; one chooses each step, the other only where it has to."""
    draw = random.Random(seed)
    choosing, staying, n_stayed = Scene(), Scene(), 0
    for _ in range(300):
        offer = SURE[: draw.choice((0, 0, 0, 0, 3, 16))]
        width = choosing.step(offer)
        if not offer and staying.stay():
            n_stayed += 1
            assert width == PLAIN
        else:
            assert staying.step(offer) == width
    assert n_stayed > 30


def test_a_step_does_not_stay_plain_where_a_wider_one_is_quicker_or_has_to_be_left():
    widths = Widths({1: 1.0, 7: 2.0, 8: 1.5})
    assert not widths.stays_plain(1, 0), "there was no step"
    widths.planned(PLAIN, 1)
    assert widths.stays_plain(1, 0)
    assert not widths.stays_plain(2, 0), "a session more"
    widths.planned(8, 8)
    assert not widths.stays_plain(1, 0), "the change back is weighed"
    widths.planned(PLAIN, 7)
    assert not widths.stays_plain(7, 0), "eight rows are quicker"
    widths.planned(PLAIN, 8)
    assert widths.stays_plain(8, 0)
    widths.planned(PLAIN, 3)
    assert not widths.stays_plain(3, 0), "it is not known"


def test_plain_steps_that_were_disturbed_are_plain_again_soon():
    """They look slower than steps of two rows, and are measured again only if one is chosen."""
    steady = {1: 0.0038, 2: 0.0042, 8: 0.0070}
    widths = Widths(steady, CHANGE_S)
    chosen = list[int]()
    for i in range(120):
        chosen.append(width := widths.choose(1, widths.steady[1], [], RATE))
        widths.planned(width, width or 1)
        widths.stepped(width or 1, steady[width or 1] * (2.0 if 20 <= i < 26 else 1.0))
    assert set(chosen[20:26]) != {PLAIN}, "a wider step was never quicker"
    assert set(chosen[36:]) == {PLAIN}


def test_a_width_that_was_disturbed_at_the_start_says_little_of_others():
    widths = Widths({1: 0.005, 17: 0.013}, CHANGE_S)
    for _ in range(10):
        widths.stepped(17, 0.0065)
    assert widths.steady[1] == pytest.approx(0.005, rel=0.05)
    for _ in range(2000):
        widths.stepped(17, 0.0065)
    assert widths.steady[1] == pytest.approx(0.0025, rel=0.05), "it was taken to be off in proportion"
