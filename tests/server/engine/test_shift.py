"""A reply that outgrows the context: the same text whatever was drafted, shared or pushed out on the way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest

from server.engine.proposer import Proposal
from server.engine.request import GenerationRequest, Speculation
from server.engine.scheduler import Limits
from server.engine.session import Session
from server.engine.shift import for_drafters
from server.errors import BackendError
from server.llama.backend import Batch
from server.llama.fake import FakeBackend, FakeModel, FakeVocabulary
from server.sampling.constraint import Constraint
from server.sampling.noise import gumbel
from server.sampling.params import SamplingParams
from server.speculation.memory import MemoryPool
from server.speculation.policy import Policy
from server.speculation.presence import Presence, vocabulary_card
from server.speculation.remote import RemoteDrafters
from server.speculation.speculator import Speculator
from tests.invariance.scripted import LyingDrafter, ScriptedDrafter
from tests.support import PROMPT, Harness, OracleProposer, Outcome, request

ENDLESS = FakeModel(eog_rate=0.0)
N_CTX, N_KEEP, N = 90, 20, 300
CARD = vocabulary_card(FakeVocabulary())
LEAD = Presence("lead-1", "lead", "toy", "0", CARD, 4)


def asked(
    *, n_keep: int | None = N_KEEP, temperature: float = 0.0, first: int = 0, n: int = N
) -> GenerationRequest:
    prompt = (first, *PROMPT) if first else PROMPT
    return replace(request(prompt, temperature=temperature, max_tokens=n), n_keep=n_keep)


def backend(*, can_shift: bool = True, can_trim: bool = True, n_cells: int = 2000) -> FakeBackend:
    return FakeBackend(ENDLESS, n_cells=n_cells, n_ctx=N_CTX, can_shift=can_shift, can_trim=can_trim)


def alone(ask: GenerationRequest, *, can_shift: bool = True) -> tuple[int, ...]:
    [outcome] = Harness(backend(can_shift=can_shift)).run(ask)
    return outcome.tokens


class Following(OracleProposer):
    """An oracle that knows whole texts, and proposes from where a session's tokens end in one of them."""

    def __init__(self, texts: list[tuple[int, ...]], *, wrong_every: int = 0) -> None:
        super().__init__(texts, wrong_every=wrong_every)
        self.opened: list[int] = []
        self.seeds: list[int] = []

    def open(
        self, session: int, tokens: Sequence[int], sampling: SamplingParams, bounds: Speculation
    ) -> None:
        assert session not in self._open
        super().open(session, tokens, sampling, bounds)
        self.opened.append(len(tokens))
        self.seeds.append(sampling.seed)

    def _propose(self, session: int, limit: int) -> Proposal:
        known, tokens = self._texts, list(self._open[session])
        tail = tokens[-12:]
        self._texts = [
            tokens + text[at + 12 :]
            for text in known
            for at in range(len(text) - 12)
            if text[at : at + 12] == tail
        ]
        proposal = super()._propose(session, limit)
        self._texts = known
        return proposal


# -- which tokens go ----------------------------------------


@pytest.mark.parametrize(
    ("n_keep", "expected"),
    [(0, (0, 44)), (20, (20, 54)), (89, (86, 87)), (5000, (86, 87))],
)
def test_the_first_half_after_n_keep_is_dropped_as_in_llama_server(n_keep: int, expected: tuple[int, int]):
    session = Session(1, GenerationRequest(tuple(range(N_CTX)), n_keep=n_keep), N_CTX)
    assert session.is_full
    assert session.next_drop() == expected


def test_going_back_to_the_first_drop_and_forward_again_restores_the_very_list():
    session = Session(1, GenerationRequest(tuple(range(60)), n_keep=7), 60)
    for n in range(3):
        session.drop(*session.next_drop())
        session.tokens += range(100 * n, 100 * n + session.n_ctx - len(session.tokens))
    held, drops = session.tokens, list(session.drops)
    whole = (session.position, session.n_generated)
    session.rewind()
    assert session.tokens == list(range(60))
    assert session.n_generated == whole[1]
    session.drop(*session.next_drop())
    session.rewind()  # pushed out again on the way
    for _ in range(3):
        assert session.is_rewound
        assert session.is_full
        session.drop(*session.next_drop())
    assert not session.is_rewound
    assert session.tokens is held
    assert session.drops == drops
    assert (session.position, session.n_generated) == whole


@pytest.mark.parametrize("n_dropped", [0, 1, 33, 70_000])
@pytest.mark.parametrize("seed", [0, 7, 2**64 - 1])
def test_drafters_that_count_what_remains_have_the_noise_of_the_whole_text(seed: int, n_dropped: int):
    told = for_drafters(SamplingParams(1.0, seed=seed), n_dropped)
    ids = np.arange(50)
    for position in (0, 1, 999):
        np.testing.assert_array_equal(
            gumbel(told.seed, position, ids), gumbel(seed, position + n_dropped, ids)
        )


# -- the toy is strict ----------------------------------------


def fed(tokens: bytes) -> FakeBackend:
    fake = FakeBackend(ENDLESS)
    batch = Batch()
    batch.extend(0, 0, list(tokens), 1)
    fake.decode(batch)
    return fake


def next_row(fake: FakeBackend, position: int) -> list[float]:
    batch = Batch()
    batch.extend(0, position, [65], 1)
    return [float(x) for x in fake.decode(batch)[0]]


def test_the_toy_tells_a_shift_from_another_and_from_none():
    rows = [next_row(fed(b"abcdefgh"), 8), next_row(fed(b"abfgh"), 5)]
    for start, end in ((2, 5), (1, 4), (2, 6)):
        fake = fed(b"abcdefgh")
        fake.shift(0, start, end)
        rows.append(next_row(fake, 8 - (end - start)))
    assert len({tuple(row) for row in rows}) == len(rows)


def test_the_toy_refuses_to_move_cells_that_another_sequence_has():
    fake = fed(b"abcdefgh")
    fake.copy(0, 1, 0, 7)
    with pytest.raises(BackendError, match="sequence 1 shares cells"):
        fake.shift(0, 2, 5)
    fake.trim(1, 5)
    fake.shift(0, 2, 5)
    assert fake.length(0) == 5
    with pytest.raises(BackendError, match="cannot shift"):
        fake.shift(0, 2, 6)


# -- the engine ----------------------------------------


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


def test_where_cells_cannot_be_moved_the_rest_is_what_a_prompt_of_it_gives():
    text = alone(asked(), can_shift=False)
    session = Session(1, asked(), N_CTX)
    session.tokens += text[: N_CTX - len(PROMPT)]
    session.drop(*session.next_drop())
    [again] = Harness(backend()).run(request(session.tokens, max_tokens=30))
    n = N_CTX - len(PROMPT)
    assert again.tokens == text[n : n + 30]


def test_a_model_that_cannot_forget_evaluates_everything_anew():
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
    assert len(set(oracle.seeds)) == len(oracle.seeds)
    assert outcome.finished.stats.n_accepted > N // 3
    assert outcome.finished.stats.n_steps < N * 2 // 3


class Letters:
    """Implements Constraint: any letters."""

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
    """Beside one that knows the toy but for so many errors, another only lies."""
    pool = MemoryPool()
    bus = pool.bus(LEAD)
    remote = RemoteDrafters(bus, LEAD, max_ahead=16)
    proposer = Speculator(Policy(lookup=True, gate=False, waits=False), remote=remote)
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
    harness.engine.check()
    return harness.outcomes[id]


@pytest.mark.parametrize("can_shift", [True, False])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_drafters_over_a_bus_survive_a_shift(can_shift: bool, temperature: float):
    ask = asked(temperature=temperature)
    outcome = run_with_drafters(ask, backend(can_shift=can_shift), error=0.3)
    assert outcome.tokens == alone(ask, can_shift=can_shift)
    assert outcome.finished.stats.n_drafted > 0


def test_drafters_still_guess_the_very_draw_after_a_shift():
    """They evaluate the tokens that remain, as this backend does; the noise must be the whole text's."""
    ask = asked(temperature=1.0)
    outcome = run_with_drafters(ask, backend(can_shift=False), error=0.0)
    assert outcome.finished.stats.n_accepted > N * 0.6


def test_width_stable_steps_keep_their_width_across_a_shift():
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


@pytest.mark.parametrize("can_shift", [True, False])
def test_sessions_that_begin_alike_do_not_move_each_others_cells(can_shift: bool):
    long = PROMPT + tuple(b"and a drafter it had, and on it went")
    asks = [replace(request((*long[:80], i), max_tokens=150), n_keep=0) for i in range(3)]
    asks.append(request(long[:82], max_tokens=8))
    expected = [alone(ask, can_shift=can_shift) for ask in asks]
    harness = Harness(backend(can_shift=can_shift), limits=Limits(n_batch=64, n_chunk=64))
    assert [outcome.tokens for outcome in harness.run(*asks)] == expected
    assert sum(outcome.started.n_cached > 44 for outcome in harness.outcomes.values()) >= 2
    again = harness.run(*asks)
    assert [outcome.tokens for outcome in again] == expected


@pytest.mark.parametrize("can_shift", [True, False])
@pytest.mark.parametrize("drafted", [False, True])
def test_a_session_that_was_pushed_out_repeats_its_shifts(can_shift: bool, drafted: bool):
    """The second outgrows the context first; then the first one needs its cells."""
    asks = [asked(first=1, temperature=1.0), request((*PROMPT, *PROMPT[:31]), temperature=1.0, max_tokens=N)]
    asks[1] = replace(asks[1], n_keep=N_KEEP)
    expected = [alone(ask, can_shift=can_shift) for ask in asks]
    texts = [(*ask.prompt, *text) for ask, text in zip(asks, expected, strict=True)]
    harness = Harness(
        backend(can_shift=can_shift, n_cells=165),
        Following(texts) if drafted else None,
        limits=Limits(n_batch=64, n_chunk=17),
    )
    _, second = harness.submit(*asks)
    pushed_out_at: list[int] = []
    while harness.engine.step():
        if harness.engine.n_waiting:
            pushed_out_at.append(len(harness.outcomes[second].tokens))
    harness.engine.check()
    assert [outcome.tokens for outcome in harness.outcomes.values()] == expected
    assert any(n > N_CTX - len(asks[1].prompt) for n in pushed_out_at), pushed_out_at


def window(outcome: Outcome) -> tuple[int, ...]:
    """The tokens that remain after the first shift, and what followed."""
    session = Session(1, asked(), N_CTX)
    n = N_CTX - len(PROMPT)
    session.tokens += outcome.tokens[:n]
    session.drop(*session.next_drop())
    return (*session.tokens, *outcome.tokens[n:])


@pytest.mark.parametrize("can_shift", [True, False])
def test_moved_cells_are_not_reused_afterwards(can_shift: bool):
    harness = Harness(backend(can_shift=can_shift))
    [first] = harness.run(asked(n=N_CTX - len(PROMPT) + 5))
    turn = (*window(first), 9)
    [continued] = harness.run(request(turn, max_tokens=3))
    assert continued.started.n_cached == (N_KEEP if can_shift else len(turn) - 2)
    assert continued.tokens == alone(request(turn, max_tokens=3))


@pytest.mark.parametrize("can_shift", [True, False])
def test_nor_beside_the_session_that_has_them(can_shift: bool):
    harness = Harness(backend(can_shift=can_shift))
    [id] = harness.submit(asked())
    while len(harness.outcomes[id].tokens) < N_CTX - len(PROMPT) + 5:
        harness.engine.step()
    turn = (*window(harness.outcomes[id]), 9)
    [beside] = harness.submit(request(turn, max_tokens=3))
    while harness.engine.step():
        pass
    harness.engine.check()
    assert harness.outcomes[beside].started.n_cached == (N_KEEP if can_shift else len(turn) - 2)
    assert harness.outcomes[beside].tokens == alone(request(turn, max_tokens=3))
    assert harness.outcomes[id].tokens == alone(asked(), can_shift=can_shift)


@pytest.mark.parametrize("can_shift", [True, False])
@pytest.mark.parametrize("keep", [None, 0, 60, 118])
def test_cancelled_after_a_shift_nothing_wrong_stays_cached(can_shift: bool, keep: int | None):
    harness = Harness(backend(can_shift=can_shift))
    [id] = harness.submit(asked(n=N))
    while len(harness.outcomes[id].tokens) < 120:
        harness.engine.step()
    harness.engine.cancel(id, keep)
    harness.engine.check()
    outcome: Outcome = harness.outcomes[id]
    assert outcome.finished.stats.n_predicted == 120
    whole = PROMPT + outcome.tokens
    for prompt in (whole[:80], (*PROMPT[:N_KEEP], *whole[-60:]), (*PROMPT, 1)):
        ask = request(prompt, max_tokens=5)
        assert harness.run(ask)[0].tokens == alone(ask)


def test_max_tokens_that_are_reached_with_the_context_end_the_reply():
    [outcome] = Harness(backend()).run(asked(n=N_CTX - len(PROMPT)))
    assert len(outcome.tokens) == N_CTX - len(PROMPT)
    assert outcome.finished.reason == "length"
    assert not outcome.finished.stats.truncated
