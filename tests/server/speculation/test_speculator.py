"""The engine with everything that guesses inside the lead, over the toy model; and the gate at work."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest

from server.engine.events import Committed
from server.engine.proposer import StepTiming
from server.engine.request import GenerationRequest, Speculation
from server.engine.scheduler import Limits
from server.llama.backend import Batch, Hidden, Logits
from server.llama.with_block import WithBlock
from server.speculation.account import Account
from server.speculation.drafter_host import BASELINE_STEPS
from server.speculation.policy import Policy
from server.speculation.shape_times import SETTLING
from server.speculation.sources.block_draft import BlockDraft
from server.speculation.sources.draft_model import DraftModel
from server.speculation.speculator import Speculator
from server.speculation.step import DraftPlan
from server.speculation.step_times import LATEST, REFRESH, StepTimes
from tests.fake_backend import FakeBackend, FakeModel
from tests.support import PROMPT, Harness, Outcome, request
from tests.toy_block import ToyBlock

MODEL = FakeModel(eog_rate=0.0)


class Clock:
    """A clock that moves only when told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class TimedBackend(FakeBackend):
    """A toy model whose decodes take time by the clock: `step_s`, and `row_s` for each row."""

    def __init__(self, clock: Clock, model: FakeModel, step_s: float, row_s: float) -> None:
        super().__init__(model)
        self.clock, self.timing = clock, (step_s, row_s)
        self.n_rows = 0
        self.confused = 0.0  # share of rows in which the likeliest token and its runner-up are swapped

    def decode(self, batch: Batch) -> Logits:
        self.n_rows += len(batch)
        self.clock.now += self.timing[0] + self.timing[1] * len(batch)
        logits = super().decode(batch)
        for row in logits:
            second, first = np.argsort(row)[-2:]
            if (int(first) * 31 + int(second) * 17) % 100 < 100 * self.confused:
                row[[first, second]] = row[[second, first]]
        return logits


class Scene:
    """A lead with a draft model in it that errs at a share of positions."""

    def __init__(
        self,
        error: float,
        *,
        row_s: float = 0.05,
        td_s: float = 0.05,
        policy: Policy | None = None,
        one_shape: bool = False,
        times: StepTimes | None = None,
    ):
        self.clock = Clock()
        self.target = TimedBackend(self.clock, MODEL, 1.0 - row_s, row_s)
        self.drafts = TimedBackend(self.clock, FakeModel(error=error, error_seed=9, eog_rate=0.0), td_s, 0.0)
        self.speculator = Speculator(
            policy or Policy(lookup=False),
            inline=DraftModel(self.drafts, one_shape=one_shape, clock=self.clock),
            times=times,
            clock=self.clock,
        )
        limits = Limits(n_batch=64, n_chunk=16, draft_max=8)
        self.harness = Harness(self.target, self.speculator, limits=limits, clock=self.clock)

    def rate(self, *asks: GenerationRequest) -> float:
        """Return tokens per second of these requests together."""
        began = self.clock.now
        n = sum(len(outcome.tokens) for outcome in self.harness.run(*asks))
        return n / (self.clock.now - began)


def texts(outcomes: Sequence[Outcome]) -> list[tuple[int, ...]]:
    return [outcome.tokens for outcome in outcomes]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("n_sessions", [1, 4])
def test_inner_draft_changes_only_speed(temperature: float, n_sessions: int):
    asks = [request((*PROMPT, i), temperature=temperature, seed=i, max_tokens=100) for i in range(n_sessions)]
    expected = texts(Harness(FakeBackend(MODEL)).run(*asks))
    scene = Scene(error=0.15)
    outcomes = scene.harness.run(*asks)
    assert texts(outcomes) == expected
    steps = sum(outcome.finished.stats.n_steps for outcome in outcomes)
    assert steps < 0.6 * 100 * n_sessions
    assert {"draft"} == {name for o in outcomes for name in o.finished.stats.drafters}
    again = [request((*ask.prompt, *text), max_tokens=10) for ask, text in zip(asks, expected, strict=True)]
    assert texts(scene.harness.run(*again)) == texts(Harness(FakeBackend(MODEL)).run(*again))


def test_bad_text_spares_next_texts():
    scene = Scene(error=0.0, row_s=0.5)
    scene.drafts.confused = 0.5
    scene.rate(request((*PROMPT, 9), max_tokens=300))
    scene.drafts.confused = 0.0
    assert sum(scene.rate(request((*PROMPT, i, 99), max_tokens=40)) for i in range(5)) > 1.1 * 5


def test_bad_first_text_bars_nothing():
    scene = Scene(error=0.0, row_s=0.5)
    scene.drafts.confused = 1.0
    scene.rate(request((*PROMPT, 9), max_tokens=60))
    scene.drafts.confused = 0.0
    rates = [scene.rate(request((*PROMPT, i, 99), max_tokens=40)) for i in range(6)]
    assert rates[-1] > 1.2


def test_the_draft_model_shares_nothing_between_salts():
    scene = Scene(error=0.0)
    n_rows: list[int] = []
    for salt in ("one", "another", "one"):
        before = scene.drafts.n_rows
        scene.harness.run(replace(request(tuple(range(1, 200)), max_tokens=12), salt=salt))
        n_rows.append(scene.drafts.n_rows - before)
    assert min(n_rows[:2]) > 190
    assert n_rows[2] < 40


@pytest.mark.parametrize("one_shape", [False, True])
def test_costly_changes_decode_by_rows(one_shape: bool):
    scene = Scene(error=0.1, one_shape=one_shape)
    (plain,) = Harness(FakeBackend(MODEL)).run(request())
    (outcome,) = scene.harness.run(request())
    assert outcome.tokens == plain.tokens
    assert scene.drafts.n_rows > 60
    first_guesses = scene.drafts.widths[len(PROMPT) // scene.drafts.n_batch + 2 :][:16]
    assert set(first_guesses) == ({1} if one_shape else {1, 2})


def test_some_undrafted_steps_still_teach(monkeypatch: pytest.MonkeyPatch):
    speculator, learned = Speculator(Policy(lookup=False)), list[StepTiming]()
    rates = speculator.ledger.rates
    learn = rates.learn

    def heard(plan: DraftPlan, timing: StepTiming, *, uncrowded: bool) -> None:
        learned.append(timing)
        learn(plan, timing, uncrowded=uncrowded)

    monkeypatch.setattr(rates, "learn", heard)
    harness = Harness(FakeBackend(MODEL), speculator)
    harness.run(request(max_tokens=2 * BASELINE_STEPS + 10 * REFRESH))
    assert 2 * BASELINE_STEPS + 9 <= len(learned) <= 2 * BASELINE_STEPS + 10


@pytest.fixture
def nobody_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    def ignore(*_: Any, **__: Any) -> None:
        pass

    monkeypatch.setattr(Account, "book", ignore)


@pytest.mark.usefixtures("nobody_rests")
def test_lookups_spare_the_draft_model():
    texts = [request(list(b"again and again and again and again and "), max_tokens=60) for _ in range(2)]
    n_rows: list[int] = []
    for lookup in (False, True):
        scene = Scene(error=0.3, policy=Policy(lookup=lookup))
        for one in texts:  # the second reply is the first one's
            before = scene.drafts.n_rows
            scene.harness.run(one)
            n_rows.append(scene.drafts.n_rows - before)
    assert n_rows[3] < n_rows[1] / 2


def test_depth_follows_draft_quality():
    long = request(max_tokens=400)
    good, bad = Scene(error=0.05), Scene(error=1.0, row_s=0.15)
    alone = Scene(error=0.05)
    plain = alone.rate(request(max_tokens=400, draft_max=0))
    assert plain == pytest.approx(1.0, rel=0.02)
    assert good.rate(long) > 3.0
    assert bad.rate(long) > 0.9  # learning costs some twenty steps,
    assert bad.rate(long) > 0.985  # and what was learned stays


def test_rows_dear_as_steps_stay():
    scene = Scene(error=0.2, row_s=1.0)
    scene.rate(request(max_tokens=100))
    assert scene.rate(request((*PROMPT, 7), max_tokens=300)) > 0.97


def test_the_runner_up_fills_free_rows():
    rates: list[float] = []
    for leaves in (1, 3):
        scene = Scene(error=0.0, row_s=0.001, policy=Policy(lookup=False, leaves=leaves))
        scene.drafts.confused = 0.3
        scene.rate(request(max_tokens=100))
        rates.append(scene.rate(request((*PROMPT, 3), max_tokens=300)))
    chains, trees = rates
    assert trees > 1.1 * chains


def test_repeated_prompt_is_looked_up():
    quoted = tuple(b"the quick brown fox jumps over the lazy dog. ") * 3
    harness = Harness(FakeBackend(MODEL), Speculator(Policy(gate=False)))
    [plain] = Harness(FakeBackend(MODEL)).run(request(max_tokens=60))
    [first] = harness.run(request(max_tokens=60))
    assert first.tokens == plain.tokens
    [again] = harness.run(request(max_tokens=60))  # the same question: the last reply is looked up
    assert again.tokens == plain.tokens
    assert again.finished.stats.n_steps < 20
    assert set(again.finished.stats.drafters) == {"lookup"}
    assert len(quoted) == 135


def test_prediction_becomes_a_draft():
    [plain] = Harness(FakeBackend(MODEL)).run(request(max_tokens=60))
    expected = list(plain.tokens)
    expected[30] = 1
    ask = GenerationRequest(
        PROMPT, request().sampling, 60, speculation=Speculation(prediction=tuple(expected))
    )
    clock = Clock()
    speculator = Speculator(Policy(lookup=False), clock=clock)
    [outcome] = Harness(TimedBackend(clock, MODEL, 0.95, 0.05), speculator, clock=clock).run(ask)
    assert outcome.tokens == plain.tokens
    assert outcome.finished.stats.n_steps < 15
    assert set(outcome.finished.stats.drafters) == {"prediction"}


@pytest.mark.usefixtures("nobody_rests")
def test_request_chooses_its_sources():
    scene = Scene(error=0.1)
    sampling = request().sampling
    nobody = GenerationRequest(
        PROMPT, sampling, 40, speculation=Speculation(drafters=frozenset({"somebody"}))
    )
    [outcome] = scene.harness.run(nobody)
    assert outcome.finished.stats.n_drafted == 0
    many = GenerationRequest(PROMPT, sampling, 40, speculation=Speculation(n_min=4))
    [outcome] = scene.harness.run(many)
    drafted = [event.n_drafted for event in outcome.events if isinstance(event, Committed)]
    assert any(drafted)
    assert all(n == 0 or n >= 4 for n in drafted)


class Exact(FakeBackend):
    """A proposer that records whether all steps of a session's reply had one width."""

    def reply_widths(self) -> set[int]:
        return set(self.widths[1:])


def test_stable_session_keeps_one_width():
    stable = Speculation(exactness="width-stable")
    asks = [GenerationRequest((*PROMPT, i), request().sampling, 40, speculation=stable) for i in range(2)]
    backend = Exact(MODEL)
    limits = Limits(n_batch=64, n_chunk=16, stable_width=8)
    outcomes = Harness(backend, Speculator(Policy()), limits=limits).run(*asks)
    assert texts(outcomes) == texts(Harness(FakeBackend(MODEL)).run(*asks))
    assert set(backend.widths) == {8, len(PROMPT) + 1}
    assert all(outcome.started.n_cached == 0 for outcome in outcomes)


def test_rejection_uses_only_draft_model():
    clock = Clock()
    target = TimedBackend(clock, MODEL, 0.95, 0.05)
    drafts = TimedBackend(clock, FakeModel(error=0.1, error_seed=9, eog_rate=0.0), 0.05, 0.0)
    policy = Policy(lookup=False, leaves=1, by_rejection=True)
    inline = DraftModel(drafts, distributions=True, clock=clock)
    limits = Limits(n_batch=64, n_chunk=16, draft_max=8, leaves=1, by_rejection=True)
    harness = Harness(target, Speculator(policy, inline=inline, clock=clock), limits=limits, clock=clock)
    asks = [request((*PROMPT, i), temperature=1.0, seed=i, max_tokens=80) for i in range(2)]
    for outcome in harness.run(*asks):
        assert len(outcome.tokens) == 80
        assert outcome.finished.stats.n_steps < 50
    [greedy] = harness.run(request(max_tokens=60))
    [plain] = Harness(FakeBackend(MODEL)).run(request(max_tokens=60))
    assert greedy.tokens == plain.tokens


class SlowAtFirst(TimedBackend):
    """A backend whose first two decodes take a hundred times as long."""

    def decode(self, batch: Batch) -> Logits:
        if not self.n_rows:
            self.clock.now += 2 * 99 * sum(self.timing)
        return super().decode(batch)


class TimedBlock(ToyBlock):
    """A block whose guesses take 0.05 s, the first two 5 s."""

    def __init__(self, target: TimedBackend) -> None:
        super().__init__(target, FakeModel(error=0.15, error_seed=9, eog_rate=0.0))
        self.clock = target.clock

    def evaluate(self, batch: Batch, hidden: Hidden, depth: int = 0) -> tuple[Logits, Hidden]:
        self.clock.now += 0.05 if self.n_decodes >= SETTLING else 5.0
        return super().evaluate(batch, hidden, depth)


@pytest.mark.parametrize("by_block", [False, True])
def test_rehearsal_ignores_slow_beginnings(by_block: bool):
    clock = Clock()
    target = TimedBackend(clock, MODEL, 0.95, 0.05)
    model = WithBlock(target, TimedBlock(target)) if by_block else target
    drafts = SlowAtFirst(clock, FakeModel(error=0.15, error_seed=9, eog_rate=0.0), 0.05, 0.0)
    inline = (
        BlockDraft(model, clock=clock) if isinstance(model, WithBlock) else DraftModel(drafts, clock=clock)
    )
    inline.rehearse()
    assert inline.td.value == pytest.approx(0.05)
    assert target.length(0) == 0
    speculator = Speculator(Policy(lookup=False), inline=inline, clock=clock)
    limits = Limits(n_batch=64, n_chunk=16, draft_max=8)
    harness = Harness(cast(FakeBackend, model), speculator, limits=limits, clock=clock)
    began = clock.now
    [outcome] = harness.run(request(max_tokens=60))
    assert len(outcome.tokens) > 1.5 * (clock.now - began)


@pytest.mark.parametrize(
    ("overlaps", "widths"), [(False, {32: 1, 1: 1}), (True, {32: 1, 2: 1, 3: 1, 4: 1, 1: 1})]
)
def test_rehearsal_has_steps_of_each_width(overlaps: bool, widths: dict[int, int]):
    target = FakeBackend(MODEL, overlaps=overlaps)
    block = ToyBlock(target, MODEL)
    BlockDraft(WithBlock(target, block)).rehearse()
    assert Counter(target.widths) == widths
    assert block.n_decodes == 2 * len(widths) + SETTLING + LATEST
    assert target.length(0) == block.cells.length(0) == 0


def test_slow_guesses_soon_return():
    scene = Scene(error=0.15)
    assert scene.rate(request(max_tokens=100)) > 1.5
    scene.drafts.timing = 1.5, 0.0
    assert scene.rate(request((*PROMPT, 0), max_tokens=100)) < 1.0
    scene.drafts.timing = 0.05, 0.0
    for i in range(1, 4):  # 300 tokens: guesses of 1.5 s are tried once
        scene.rate(request((*PROMPT, i), max_tokens=100))
    assert scene.rate(request((*PROMPT, 4), max_tokens=100)) > 1.5


@pytest.mark.parametrize("by_block", [False, True])
def test_nothing_guessed_after_end(by_block: bool):
    """All guesses are right, also the one that ends the text, and the gate is off."""
    clock, model = Clock(), FakeModel(eog_rate=0.05)
    target = TimedBackend(clock, model, 1.0, 0.0)
    with_block = WithBlock(target, block := ToyBlock(target, model))
    drafts = TimedBackend(clock, model, 0.0, 0.0)
    inline = BlockDraft(with_block, clock=clock) if by_block else DraftModel(drafts, clock=clock)
    speculator = Speculator(Policy(leaves=1, lookup=False, gate=False), inline=inline, clock=clock)
    backend = with_block if by_block else target
    limits = Limits(n_batch=64, n_chunk=64, draft_max=32)
    harness = Harness(cast(FakeBackend, backend), speculator, limits=limits, clock=clock)
    [outcome] = harness.run(request(PROMPT, max_tokens=100))
    assert outcome.finished.reason == "stop"
    n_tokens = len(outcome.tokens)
    assert 3 < n_tokens < 60
    stats = outcome.finished.stats
    assert stats.n_drafted == stats.n_accepted > 1
    n_rows = block.n_decodes if by_block else drafts.n_rows - len(PROMPT)
    assert n_rows <= n_tokens + 2
