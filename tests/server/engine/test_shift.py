"""A reply that outgrows the context: the same text whatever was drafted on the way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest

from server.engine.request import GenerationRequest, Speculation
from server.engine.session import Session
from server.sampling.constraint import Constraint
from server.sampling.params import SamplingParams
from server.speculation.policy import Policy
from server.speculation.sources.remote import RemoteDrafters
from server.speculation.speculator import Speculator
from server.speculation.wire.presence import Presence, vocabulary_card
from tests.checks import check_engine
from tests.fake_backend import FakeBackend, FakeVocabulary
from tests.invariance.scripted import LyingDrafter, ScriptedDrafter
from tests.memory_bus import MemoryPool
from tests.server.engine.shifting import ENDLESS, N_CTX, Following, N, alone, asked, backend
from tests.support import PROMPT, Harness, Outcome, request

CARD = vocabulary_card(FakeVocabulary())
LEAD = Presence("lead-1", "lead", "toy", "0", CARD, 4)


@pytest.mark.parametrize("can_shift", [True, False])
def test_a_reply_goes_on_beyond_the_context(can_shift: bool):
    harness = Harness(backend(can_shift=can_shift))
    [outcome] = harness.run(asked())
    assert len(outcome.tokens) == N
    assert outcome.finished.reason == "length"
    stats = outcome.finished.stats
    assert (stats.n_predicted, stats.n_prompt, stats.truncated) == (N, len(PROMPT), True)
    [within] = Harness(FakeBackend(ENDLESS)).run(replace(asked(), n_keep=None))
    n_same = N_CTX - len(PROMPT)
    assert outcome.tokens[:n_same] == within.tokens[:n_same]
    assert outcome.tokens != within.tokens
    if can_shift:  # nothing is evaluated twice
        assert sum(harness.backend.widths) == len(PROMPT) + N - 1


def test_without_it_the_reply_ends_there():
    [outcome] = Harness(backend()).run(asked(n_keep=None))
    assert len(PROMPT) + len(outcome.tokens) == N_CTX
    assert outcome.finished.reason == "length"
    assert not outcome.finished.stats.truncated


def test_unmovable_cells_are_reevaluated():
    text = alone(asked(), can_shift=False)
    session = Session(1, asked(), N_CTX)
    session.tokens += text[: N_CTX - len(PROMPT)]
    session.drop(*session.next_drop())
    [again] = Harness(backend()).run(request(session.tokens, max_tokens=30))
    n = N_CTX - len(PROMPT)
    assert again.tokens == text[n : n + 30]


def test_unforgetting_model_reevaluates_everything():
    [outcome] = Harness(backend(can_shift=False, can_trim=False)).run(asked())
    assert outcome.tokens == alone(asked(), can_shift=False)


@pytest.mark.parametrize("can_shift", [True, False])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("wrong_every", [0, 3])
def test_drafts_change_nothing_across_shifts(can_shift: bool, temperature: float, wrong_every: int):
    ask = asked(temperature=temperature)
    expected = alone(ask, can_shift=can_shift)
    oracle = Following([PROMPT + expected], wrong_every=wrong_every)
    [outcome] = Harness(backend(can_shift=can_shift), oracle).run(ask)
    assert outcome.tokens == expected
    assert len(oracle.opened) > 5
    assert max(oracle.opened[1:]) < N_CTX
    assert oracle.dropped == sorted(set(oracle.dropped)), "positions of the noise go on"
    assert outcome.finished.stats.n_accepted > N // 3
    assert outcome.finished.stats.n_steps < N * 2 // 3


class Letters:
    """A Constraint to letters."""

    def __init__(self) -> None:
        self.accepted: list[int] = []

    def allows(self, token: int) -> bool:
        return 97 <= token < 123

    def mask(self) -> npt.NDArray[np.bool_]:
        mask = np.zeros(FakeBackend().vocab.size, np.bool_)
        mask[97:123] = True
        return mask

    def accept(self, token: int) -> None:
        self.accepted.append(token)

    def forced(self) -> tuple[int, ...]:
        return ()

    def n_allowed(self, tokens: Sequence[int]) -> int:
        return len(tokens)


def test_samplers_and_grammars_remember_what_was_dropped():
    made: list[Letters] = []

    def make() -> Constraint:
        made.append(Letters())
        return made[-1]

    penalised = replace(SamplingParams(), temperature=0.0, presence_penalty=0.3, repeat_last_n=-1)
    ask = replace(asked(n=200), sampling=penalised, constraint=make)
    [outcome] = Harness(backend()).run(ask)
    assert made[0].accepted == list(outcome.tokens)


def run_with_drafters(ask: GenerationRequest, fake: FakeBackend, *, error: float) -> Outcome:
    """Run beside a drafter that knows the toy but for some errors, and one that only lies."""
    pool = MemoryPool()
    bus = pool.bus(LEAD)
    remote = RemoteDrafters(bus, LEAD, max_ahead=16)
    proposer = Speculator(Policy(lookup=True, gate=False), remote=remote)
    bus.start(remote)
    for drafter in (ScriptedDrafter(pool, CARD, "one", error=error), LyingDrafter(pool, CARD)):
        drafter.start()
    harness = Harness(fake, proposer)
    [id] = harness.submit(ask)
    working = True
    while working:
        while pool.pump():
            pass
        working = harness.engine.step()
    check_engine(harness.engine)
    return harness.outcomes[id]


@pytest.mark.parametrize("can_shift", [True, False])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_drafters_over_a_bus_survive_a_shift(can_shift: bool, temperature: float):
    ask = asked(temperature=temperature)
    outcome = run_with_drafters(ask, backend(can_shift=can_shift), error=0.3)
    assert outcome.tokens == alone(ask, can_shift=can_shift)
    assert outcome.finished.stats.n_drafted > 0


def test_drafters_guess_draws_after_shift():
    """Drafters evaluate the remaining tokens, as this backend does, with the noise of the whole text."""
    ask = asked(temperature=1.0)
    outcome = run_with_drafters(ask, backend(can_shift=False), error=0.0)
    count = outcome.finished.stats.drafters["one"]
    assert count.accepted > 0.9 * count.drafted > 50


def test_stable_width_survives_shift():
    ask = replace(asked(), speculation=Speculation(exactness="width-stable"))
    expected = alone(asked())
    for proposer in (None, Following([PROMPT + expected], wrong_every=4)):
        harness = Harness(backend(), proposer)
        [outcome] = harness.run(ask)
        assert outcome.tokens == expected
        near_the_end = 8  # of the context there is no room for the padding
        steps = harness.backend.widths[1:]
        assert sum(width == 8 for width in steps) > len(steps) // 2
        assert all(width <= 8 for width in steps)
        assert sum(width < 8 for width in steps) <= near_the_end * (len(outcome.tokens) // 20)


def test_max_tokens_at_context_end():
    [outcome] = Harness(backend()).run(asked(n=N_CTX - len(PROMPT)))
    assert len(outcome.tokens) == N_CTX - len(PROMPT)
    assert outcome.finished.reason == "length"
    assert not outcome.finished.stats.truncated
