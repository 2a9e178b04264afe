"""Widths: padding to the one that gains most, and changes that pay."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import pytest

from server.llama.backend import CELLS_STEP
from server.speculation.shape_times import PLAIN, NextShape, ShapeTimes

STEADY = {1: 0.005, 4: 0.0060, 8: 0.0062, 17: 0.0064}
CHANGE_S = 0.001  # of the first step; the second one is taken to cost as much
RATE = 200.0  # tokens per second: those of plain steps
SURE = [0.95**k for k in range(1, 17)]


def change_s(widths: ShapeTimes, width: int, n_cells: int = 0) -> float:
    """Return the cost of a change to this width."""
    return widths._change_s(width, n_cells)


class Scene:
    """Steps of one session on a machine with the given widths."""

    def __init__(self, steady: dict[int, float] = STEADY, change_s: float = CHANGE_S) -> None:
        self.widths = ShapeTimes(steady, change_s)
        self.seconds = 0.0
        self._rows = [0, 0]
        self._change_s = change_s

        self.rows_before = 0
        self.most_s = math.inf
        self.width = PLAIN

    def shape(self, n_rows: int = 1, undrafted_s: float | None = None) -> NextShape:
        undrafted_s = self.widths.steady[1] if undrafted_s is None else undrafted_s
        return NextShape(n_rows, undrafted_s, self.rows_before, 0, self.most_s)

    def by_rows(self, n_rows: int = 1, undrafted_s: float = STEADY[1]) -> list[float]:
        return self.widths.seconds(self.shape(n_rows, undrafted_s))

    def change_s(self, width: int) -> float:
        return change_s(self.widths, width)

    def interrupt(self) -> None:
        self.widths.interrupted()
        self.rows_before = 0

    def step(self, offer: Sequence[float], *, n_rows: int = 1, rate: float = RATE) -> int:
        width, is_wider = self.widths.choose(self.shape(n_rows), offer, rate)
        return self._take(width, n_rows, is_wider=is_wider)

    def stay(self) -> bool:
        """Take a plain step if none has to be chosen, and return whether that is so."""
        stays = self.width == PLAIN and self.widths.stays_plain(self.shape())
        if stays:
            self._take(PLAIN, 1, is_wider=False)
        return stays

    def _take(self, width: int, n_rows: int, *, is_wider: bool) -> int:
        self.width = width
        self.rows_before = rows = width or n_rows
        decode_s = STEADY.get(rows, 0.005) + self._change_s * (self._rows != [rows, rows])
        self._rows = [rows, self._rows[0]]
        self.seconds += decode_s
        self.widths.chosen(is_wider=is_wider)
        self.widths.observe(rows, 0, decode_s)
        return width

    def steps(self, *offers: Sequence[float], n: int = 40) -> list[int]:
        return [self.step(offers[i % len(offers)]) for i in range(n)]


def test_free_changes_need_no_padding():
    assert not ShapeTimes({}).pays


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


def test_change_spreads_over_kept_widths():
    """The gain is 0.5 tokens, less 0.2 for rows; there and back take 0.8 at once."""
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
    scene.most_s = most_s
    assert scene.step(SURE[:3]) == width
    assert scene.widths.charge_s(4, scene.shape()) == pytest.approx(0.0 if width else 4 * CHANGE_S)


def test_prompt_leaves_one_change():
    """A plain step is a change, too. A step gains 0.7 tokens by four rows, and a change costs 0.4."""
    scene = Scene()
    scene.steps([], n=3)
    assert scene.by_rows()[4] == STEADY[4] + 2 * scene.change_s(4)
    scene.interrupt()
    assert scene.by_rows()[4] == STEADY[4] + scene.change_s(4)
    assert scene.step([0.5]) == PLAIN, "0.3 tokens"
    scene.interrupt()
    assert scene.step([0.9]) == 4


def test_interrupted_width_pays_at_start():
    """It pays from the first step on, though guesses are there for one step at a time."""
    scene, offer = Scene(), [0.5]
    assert scene.step(offer) == PLAIN
    for _ in range(20):
        scene.interrupt()
        scene.step(offer)
    scene.interrupt()
    assert scene.by_rows()[:5] == pytest.approx([STEADY[1]] * 2 + [STEADY[4]] * 3, rel=0.05)
    assert scene.step(offer) == 4


def test_session_count_changes_the_width():
    """Nine sessions, then eight: a step of 17 rows costs no change, one of eight does."""
    scene = Scene()
    scene.rows_before = 9
    assert scene.by_rows(8, 0.0062)[9] == pytest.approx(STEADY[17] + scene.change_s(8))
    scene.rows_before = 17
    assert scene.by_rows(8, 0.0062)[8] == pytest.approx(STEADY[17])
    assert scene.by_rows(8, 0.0062)[17] == pytest.approx(STEADY[17])


def test_guessless_steps_turn_plain():
    scene = Scene()
    scene.steps(SURE, n=5)
    assert scene.step([]) == 17
    scene.interrupt()
    assert scene.step([]) == PLAIN


@pytest.mark.parametrize(("n_without", "n_padded"), [(1, 1), (12, 0)])
def test_few_guessless_steps_are_padded(n_without: int, n_padded: int):
    """Padding takes 1.4 ms, and a change 2."""
    scene = Scene()
    for _ in range(20):
        scene.steps(SURE, n=5)
        scene.steps([], n=n_without)
    scene.steps(SURE, n=5)
    assert scene.steps([], n=n_without).count(17) == n_padded


def test_long_run_ends_correctly():
    """Guesses are there in every other step at first, so that no change seems to pay."""
    scene = Scene()
    scene.steps([0.6, 0.3], [], n=40)
    assert scene.steps([0.6, 0.3], n=9)[-1] == 4
    scene.steps([0.6, 0.3], [], n=40)
    assert scene.steps([], n=9)[-1] == PLAIN


@pytest.mark.parametrize("seed", range(4))
def test_mixed_texts_lose_under_twentieth(seed: int):
    """Guesses are right as often as they claim."""
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


def test_guesses_within_width_are_free():
    scene = Scene()
    scene.step([])
    there_and_back_s = 2 * scene.change_s(4)
    assert scene.by_rows()[:3] == pytest.approx([0.005] * 2 + [0.006 + there_and_back_s])
    scene.steps([0.9, 0.8, 0.7], n=5)
    assert scene.width == 4
    seconds = scene.by_rows()
    assert seconds[:5] == pytest.approx([0.006] * 5, rel=0.02), "plain steps are a change away, too"
    assert seconds[5] == pytest.approx(0.0062 + scene.change_s(8) / 5), "this run has five steps"
    assert len(seconds) == 18


def test_change_cost_is_measured():
    scene = Scene(change_s=0.003)
    scene.widths = ShapeTimes(STEADY, CHANGE_S)
    for _ in range(40):
        scene.steps(SURE, n=3)
        scene.steps([], n=30)
    assert scene.change_s(17) == pytest.approx(2 * 0.003, rel=0.1)


def test_recorded_width_returns_cheaper():
    """The number of cells is equal: a graph belongs to one number of them, in llama.cpp's steps."""
    widths = ShapeTimes(STEADY, CHANGE_S)
    for n_cells in range(0, 60 * CELLS_STEP, CELLS_STEP):
        for first_s, second_s in ((0.002, 0.004), (0.001, 0.0)):
            for rows in (8, 1):
                for extra_s in (first_s, second_s, 0.0):
                    widths.observe(rows, n_cells, STEADY[rows] + extra_s)
    seen, unseen = 59 * CELLS_STEP + 1, 60 * CELLS_STEP
    assert widths._change_s(8, seen) == widths._change_s(1, seen) == pytest.approx(0.001, rel=0.1)
    assert widths._change_s(17, seen) == pytest.approx(0.006, rel=0.1)
    assert widths._change_s(8, unseen) == widths._change_s(17, unseen)


def test_step_after_prompt_measures_nothing():
    widths = ShapeTimes(STEADY, CHANGE_S)
    for _ in range(9):
        widths.observe(1, 0, 0.005)
    assert widths.is_steady(1)
    widths.interrupted()
    assert not widths.is_steady(1)
    for seconds in (0.008, 0.009, 0.005):
        widths.observe(1, 0, seconds)
    assert widths.steady[1] == pytest.approx(0.005)
    assert widths.is_steady(1)


def test_slow_width_is_left():
    scene = Scene()
    assert scene.steps(SURE)[-1] == 17
    widths = list[int]()
    for _ in range(60):
        width, is_wider = scene.widths.choose(scene.shape(1, 0.005), SURE[:8], RATE)
        widths.append(width)
        scene.rows_before = width or 1
        scene.widths.chosen(is_wider=is_wider)
        scene.widths.observe(width, 0, 0.02 if width == 17 else STEADY[width])
    assert widths[0] == 17
    assert widths[-1] == 8


def test_one_outlier_counts_little():
    widths = ShapeTimes(STEADY, CHANGE_S)
    for seconds in (0.007, 0.007, 5.0):
        widths.observe(8, 0, seconds)
    assert widths.steady[8] < 0.0072
    assert widths.steady[17] == pytest.approx(STEADY[17], rel=0.01)
    assert change_s(widths, 17) < 2 * CHANGE_S


def test_a_longer_context_makes_all_widths_slower():
    widths = ShapeTimes({1: 0.005, 17: 0.0065}, CHANGE_S)
    for _ in range(600):
        widths.observe(17, 0, 0.0095)
    assert widths.steady[1] == pytest.approx(0.008, rel=0.02)


def test_slow_width_is_retried():
    """Other programs may have slowed it; otherwise nobody would measure it again."""
    widths = ShapeTimes({1: 0.005, 17: 0.0065}, CHANGE_S)
    for _ in range(60):
        widths.observe(17, 0, 0.05)
    assert widths.steady[17] > 0.03
    for _ in range(600):
        widths.observe(1, 0, 0.005)
    assert widths.steady[17] == pytest.approx(0.0065, rel=0.05)


@pytest.mark.parametrize("rate", [RATE, 4 * RATE])
def test_former_text_keeps_guesses(rate: float):
    """At four times the rate of plain steps no step here would be worth its time."""
    scene = Scene()
    assert [scene.step([0.6, 0.3], rate=rate) for _ in range(6)][-1] == 4


@pytest.mark.parametrize(("n_kept", "width"), [(1, PLAIN), (12, 4)])
def test_change_after_prompt_is_spread(n_kept: int, width: int):
    """A step of four rows gains 0.1 tokens over a plain one, and changing to it takes 0.4.

    Leaving a width takes two steps more.
    """
    scene = Scene()
    for _ in range(20):
        scene.interrupt()
        scene.steps(SURE[:3], n=n_kept)
        scene.steps([], n=20)
    scene.interrupt()
    assert scene.step([0.3]) == width
    scene.interrupt()
    open_to = len(scene.by_rows()) - 1
    assert open_to == 17, "a draft model has rows in any case"


def test_many_sessions_are_not_padded():
    scene = Scene()
    assert scene.widths.choose(scene.shape(40, 0.02), SURE, RATE) == (PLAIN, False)
    assert len(scene.by_rows(40, 0.02)) == 41


@pytest.mark.parametrize("seed", range(20))
def test_plain_shortcut_equals_choosing(seed: int):
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


@pytest.mark.parametrize(
    ("n_rows", "before", "stays"),
    [
        pytest.param(1, 0, False, id="there was no step"),
        pytest.param(1, 1, True, id="as before"),
        pytest.param(2, 1, False, id="a session more"),
        pytest.param(1, 8, False, id="the change back is weighed"),
        pytest.param(7, 7, False, id="eight rows are quicker"),
        pytest.param(8, 8, True, id="nothing wider is quicker"),
        pytest.param(3, 3, False, id="it is not known"),
    ],
)
def test_which_steps_without_guesses_stay_plain(n_rows: int, before: int, stays: bool):
    widths = ShapeTimes({1: 1.0, 7: 2.0, 8: 1.5})
    assert widths.stays_plain(NextShape(n_rows, 0.0, before, 0)) is stays


def test_disturbed_plain_steps_recover():
    """They look slower than steps of two rows, and are measured again only if one is chosen."""
    steady = {1: 0.0038, 2: 0.0042, 8: 0.0070}
    widths = ShapeTimes(steady, CHANGE_S)
    chosen = list[int]()
    before = 0
    for i in range(120):
        shape = NextShape(1, widths.steady[1], before, 0)
        width, is_wider = widths.choose(shape, [], RATE)
        chosen.append(width)
        before = width or 1
        widths.chosen(is_wider=is_wider)
        widths.observe(before, 0, steady[before] * (2.0 if 20 <= i < 26 else 1.0))
    assert set(chosen[20:26]) != {PLAIN}, "a wider step was never quicker"
    assert set(chosen[36:]) == {PLAIN}


def test_early_disturbance_spares_other_widths():
    widths = ShapeTimes({1: 0.005, 17: 0.013}, CHANGE_S)
    for _ in range(10):
        widths.observe(17, 0, 0.0065)
    assert widths.steady[1] == pytest.approx(0.005, rel=0.05)
    for _ in range(2000):
        widths.observe(17, 0, 0.0065)
    assert widths.steady[1] == pytest.approx(0.0025, rel=0.05), "it was taken to be off in proportion"
