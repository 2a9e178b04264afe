"""A prediction block where a change of width costs steps, as on a GPU.

Steps without guesses have no row for one, and a step is wide once that would have paid.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import cast

import pytest

from server.engine.proposer import Ask, OpenedSession, StepTiming, Upcoming
from server.engine.request import Speculation
from server.engine.scheduler import Limits
from server.llama.backend import Batch, Hidden, Logits
from server.llama.with_block import WithBlock
from server.sampling.draft_token import DraftGuess
from server.speculation.policy import Policy
from server.speculation.shape_times import ShapeTimes
from server.speculation.sources.block_draft import BlockDraft
from server.speculation.speculated import IN_SESSION
from server.speculation.speculator import Speculator
from server.speculation.step import Guessers
from server.speculation.step_times import StepTimes
from tests.fake_backend import FakeBackend, FakeModel
from tests.server.speculation.driving import ask, committed
from tests.server.speculation.test_speculator import MODEL, Clock, TimedBackend
from tests.support import PROMPT, Harness, request
from tests.toy_block import ToyBlock

STEADY = {1: 1.0, 4: 1.1, 8: 1.2}  # seconds of a decode by its rows
CHANGE_S = 1.0  # of the first decode of a width and of the second


class ShapedBackend(TimedBackend):
    """A backend whose decodes take what STEADY says, and longer after a change of width."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock, MODEL, 0.0, 0.0)

    def decode(self, batch: Batch) -> Logits:
        logits = super().decode(batch)
        changed = self.widths[-3:] != [len(batch)] * 3
        self.clock.now += STEADY.get(len(batch), 2.0) + CHANGE_S * changed
        return logits


class RowBlock(ToyBlock):
    """A block whose guesses take 0.2 s, and 0.1 s for each row that it evaluates beside."""

    def evaluate(self, batch: Batch, hidden: Hidden, depth: int = 0) -> tuple[Logits, Hidden]:
        cast(TimedBackend, self.target).clock.now += 0.1 + 0.1 * len(batch)
        return super().evaluate(batch, hidden, depth)


class Scene:
    """A lead whose model has a block that errs at a share of positions.

    overlaps: as on a GPU, the block can guess while the model decodes.
    """

    def __init__(self, error: float, *, overlaps: bool = False) -> None:
        self.clock = Clock()
        self.target = ShapedBackend(self.clock)
        self.target.overlaps = overlaps
        self.block = RowBlock(self.target, FakeModel(error=error, error_seed=9, eog_rate=0.0))
        self.model = WithBlock(self.target, self.block)
        self.inline = BlockDraft(self.model, clock=self.clock)
        self.inline.rehearse()
        calibrated = {n: 1.0 + 0.02 * n for n in range(1, 65)}
        self.speculator = Speculator(
            Policy(leaves=1, lookup=False),
            inline=self.inline,
            times=StepTimes(64, calibrated, ShapeTimes(STEADY, CHANGE_S)),
            clock=self.clock,
        )
        limits = Limits(n_batch=64, n_chunk=64, draft_max=8)
        backend = cast(FakeBackend, self.model)
        self.harness = Harness(backend, self.speculator, limits=limits, clock=self.clock)

    def opened(self) -> OpenedSession:
        """Return a session whose prompt the model has evaluated."""
        prompt = Batch()
        prompt.extend(0, 0, list(PROMPT), 1)
        self.model.decode(prompt)
        return OpenedSession(1, [*PROMPT, 5], request().sampling, Speculation())

    def rate(self, prompt: int, max_tokens: int) -> float:
        began = self.clock.now
        [outcome] = self.harness.run(request((*PROMPT, prompt), max_tokens=max_tokens))
        return len(outcome.tokens) / (self.clock.now - began)


def test_rowless_right_guess_pauses_nothing():
    """A guess takes a fifth of a step and brings nothing, until a wider step pays."""
    scene = Scene(error=0.0)
    assert scene.rate(0, 100) > 1.5


def test_hard_first_text_bars_no_block():
    scene = Scene(error=1.0)
    assert scene.rate(0, 100) > 0.85, "few guesses are made"
    scene.block.cells.model = MODEL
    assert [scene.rate(i, 60) for i in (1, 2, 3)][-1] > 1.5


@pytest.mark.parametrize("late", [False, True])
def test_catching_up_guess_tells_no_time(late: bool):
    scene = Scene(error=0.0)
    session = scene.opened()
    scene.inline.td.restart()
    for _ in range(1 + late):
        scene.inline.follow(session, Ask(1, 8, seq=0))
    scene.inline.guess([1], second=False)
    assert scene.inline.td.count == 0, "it has evaluated the prompt"
    scene.inline.guess([1], second=False)
    assert scene.inline.td.value == pytest.approx(0.2)
    scene.inline.follow(session, Ask(1, 8, seq=0))
    scene.inline.guess([1], second=False)
    assert scene.inline.td.count == 2, "the block guessed in the step before"


def test_a_rest_ends_within_a_reply(monkeypatch: pytest.MonkeyPatch):
    """No guess is right."""
    scene = Scene(error=1.0)
    guess, sizes = scene.inline.guess, list[int]()

    def noted(sessions: Sequence[int], **how: bool) -> list[DraftGuess | None]:
        sizes.append(len(scene.target.widths))
        return guess(sessions, **how)

    monkeypatch.setattr(scene.inline, "guess", noted)
    scene.harness.run(request(max_tokens=900))
    rests = [after - before for before, after in pairwise(sizes) if after - before > 50]
    assert rests, "more than 50 steps without a guess, and then more guesses"


@pytest.mark.parametrize("paused", [False, True])
def test_resting_guesses_open_no_width(paused: bool):
    scene = Scene(error=0.0)
    speculator, session = scene.speculator, scene.opened()
    speculator.open(session)
    one = speculator._sessions[1]  # pyright: ignore[reportPrivateUsage]
    opened = list[bool]()
    for _ in range(30):
        one.account.paused = 99 if paused else 0
        plan = ask(speculator, Ask(1, 8, seq=0), n_cells=len(PROMPT))
        opened.append(bool(plan.width))
        timing = StepTiming(1, len(PROMPT), STEADY[1], STEADY[1], 1, 1)
        plan.proposals, plan.charges = (), {}
        committed(speculator, 1, timing=timing, plan=plan)
    assert any(opened) is not paused


def test_rowless_guess_overlaps_the_decode(
    monkeypatch: pytest.MonkeyPatch,
):
    scene = Scene(error=0.0, overlaps=True)
    guess, decode, decoding, beside = scene.inline.guess, scene.model.decode, [False], list[bool]()

    def noted(sessions: Sequence[int], **how: bool) -> list[DraftGuess | None]:
        beside.append(decoding[0])
        assert decoding[0] is not how.get("timed", True), "td is of guesses between two steps"
        return guess(sessions, **how)

    def noted_decode(batch: Batch) -> Logits:
        decoding[0] = True
        logits = decode(batch)
        decoding[0] = False
        return logits

    monkeypatch.setattr(scene.inline, "guess", noted)
    monkeypatch.setattr(scene.model, "decode", noted_decode)
    [outcome] = scene.harness.run(request(max_tokens=60))
    assert beside[0], "the first one only shows whether guesses are right"
    assert not all(beside), "later ones are verified"
    assert outcome.finished.stats.n_accepted > 30


def test_prompt_is_read_during_decode(monkeypatch: pytest.MonkeyPatch):
    scene, read = Scene(error=0.0, overlaps=True), WithBlock.read

    def slowly(self: WithBlock, seq: int) -> None:
        scene.clock.now += 0.01
        read(self, seq)

    monkeypatch.setattr(WithBlock, "read", slowly)
    scene.speculator.open(scene.opened())
    planned = ask(scene.speculator, Ask(1, 8, seq=0), n_cells=len(PROMPT))
    assert planned.spent_s == 0.0, "the block is not charged for the step after a prompt"
    assert scene.model.n_late(0) == len(PROMPT), "not before"
    step = Batch()
    step.extend(0, len(PROMPT), [5], 1)
    scene.model.decode(step)
    assert scene.model.n_late(0) <= 1


def test_width_waits_for_right_guess():
    """A change of width costs 3 tokens here, and guesses that were never right may cost 1.5."""
    scene = Scene(error=1.0, overlaps=True)
    scene.harness.run(request(max_tokens=200))
    assert set(scene.target.widths[-199:]) == {1}


def test_right_guesses_pay_width_change():
    scene = Scene(error=0.0, overlaps=True)
    scene.harness.run(request(max_tokens=60))
    assert 8 in scene.target.widths


@pytest.mark.parametrize("has_block", [False, True])
def test_only_own_guesses_pay_changes(has_block: bool):
    """A session that has gained nothing affords 1.5 tokens, and a change of width costs more."""
    times = StepTimes(64, {1: 1.0}, ShapeTimes(STEADY, CHANGE_S))
    inline = Scene(error=0.0, overlaps=True).inline if has_block else None
    speculator = Speculator(Policy(lookup=False), inline=inline, times=times)
    speculator.open(OpenedSession(1, list(PROMPT), request().sampling, Speculation()))
    asks, step = [Ask(1, 8)], Upcoming(1, 1, 1)
    view = speculator._view(asks, step, Guessers(drafters=True))  # pyright: ignore[reportPrivateUsage]
    assert view.shape is not None
    assert (view.shape.most_s == IN_SESSION().per_step) if has_block else (view.shape.most_s == math.inf)
