"""Drafts and turns of a model whose sequences cannot be trimmed."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import pytest

from server.engine.checkpoints import MIN_CHECKPOINT_TOKENS, TURN_MARGIN, Checkpoints
from server.engine.events import Committed
from server.engine.proposer import Plan, Upcoming
from server.engine.request import GenerationRequest
from server.engine.scheduler import Limits
from server.errors import BackendError
from server.llama.backend import Batch
from server.speculation.policy import Policy
from server.speculation.sources.draft_model import DraftModel
from server.speculation.speculator import Speculator
from tests.checks import check_engine
from tests.fake_backend import FakeBackend, FakeModel
from tests.server.speculation.test_speculator import Clock, TimedBackend
from tests.support import PROMPT, Harness, OracleProposer, request

ENDLESS = FakeModel(eog_rate=0.0)
LONG = PROMPT * 4
DRAFT_MAX = 8


def recurrent(*, n_cells: int = 4096, n_seqs: int = 16, n_batch: int = 64, n_tail: int = 0) -> FakeBackend:
    return FakeBackend(ENDLESS, n_cells, n_seqs=n_seqs, n_batch=n_batch, can_trim=False, n_tail=n_tail)


def plain(*asks: GenerationRequest) -> list[tuple[int, ...]]:
    return [outcome.tokens for outcome in Harness(FakeBackend(ENDLESS)).run(*asks)]


# -- the toy ----------------------------------------


def evaluate(backend: FakeBackend, seq: int, position: int, tokens: Sequence[int]) -> list[float]:
    batch = Batch()
    batch.extend(seq, position, tokens, 1)
    return [float(value) for value in backend.decode(batch)[0]]


def test_toy_rejects_overlong_state():
    backend = recurrent()
    evaluate(backend, 0, 0, [1, 2, 3])
    with pytest.raises(BackendError, match="cannot be trimmed"):
        backend.trim(0, 2)
    backend.trim(0, 3)
    backend.copy(0, 1, 0, 2)  # two cells, and the state after three
    with pytest.raises(BackendError, match="different tokens"):
        evaluate(backend, 1, 2, [9])


def test_toy_rejects_foreign_state():
    backend = recurrent()
    evaluate(backend, 0, 0, [1, 2, 3])
    evaluate(backend, 1, 0, [1, 5, 3])
    backend.copy(1, 0, 3, 3)
    with pytest.raises(BackendError, match="different tokens"):
        evaluate(backend, 0, 3, [9])


def test_rollback_leaves_no_trace():
    backend = recurrent()
    evaluate(backend, 0, 0, [1, 2, 3])
    checkpoints = Checkpoints(backend, 2, 2)
    checkpoints.save_step(0)
    right = evaluate(backend, 0, 3, [4, 5])
    checkpoints.restore_step(0, 3)
    assert evaluate(backend, 0, 3, [6, 5]) != right
    checkpoints.restore_step(0, 3)
    assert evaluate(backend, 0, 3, [4, 5]) == right
    checkpoints.trim(0, 0)
    assert backend.n_used == 0


def test_toy_keeps_decoded_tail():
    backend = recurrent(n_tail=3)
    right = evaluate(backend, 0, 0, [1, 2, 3])
    evaluate(backend, 0, 3, [4, 5, 6])
    for length in (2, 3):  # the state after the third token is of the decode before
        with pytest.raises(BackendError, match="cannot be trimmed"):
            backend.trim(0, length)
    backend.trim(0, 4)
    with pytest.raises(BackendError, match="cannot be trimmed"):
        backend.trim(0, 3)
    backend.trim(0, 0)
    evaluate(backend, 0, 0, [1, 2])
    assert evaluate(backend, 0, 2, [3]) == right


# -- drafts ----------------------------------------


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("n_tail", [2, DRAFT_MAX])
@pytest.mark.parametrize("n_seqs", [4, 8, 12])
def test_tail_takes_back_last_guesses(n_seqs: int, n_tail: int, temperature: float):
    """Two turns of four conversations run without room for checkpoints, with some, and for marks."""
    asks = [request((*LONG, i), seed=i, temperature=temperature, max_tokens=60) for i in range(4)]
    expected = plain(*asks)
    texts = [(*ask.prompt, *text) for ask, text in zip(asks, expected, strict=True)]
    backend, oracle = recurrent(n_seqs=n_seqs, n_tail=n_tail), OracleProposer(texts, wrong_every=5)
    harness = Harness(backend, oracle, limits=Limits(n_batch=64, draft_max=DRAFT_MAX))
    outcomes = harness.run(*asks)
    assert [outcome.tokens for outcome in outcomes] == expected
    assert 0 < oracle.accepted < oracle.proposed
    stats = [outcome.finished.stats for outcome in outcomes]
    n_new = sum(len(ask.prompt) + 59 for ask in asks) + sum(one.n_drafted - one.n_accepted for one in stats)
    n_again = sum(backend.widths) - n_new
    assert (n_again == 0) == (n_tail == DRAFT_MAX or n_seqs == 4)
    later = [request((*text, 5, 6), temperature=temperature, max_tokens=30) for text in texts]
    again = harness.run(*later)
    assert [outcome.tokens for outcome in again] == plain(*later)
    if not n_again:
        assert [outcome.started.n_cached for outcome in again] == [len(text) - 1 for text in texts]
    check_engine(harness.engine)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("wrong_every", [0, 3, 7])
def test_replayed_tokens_join_next_step(temperature: float, wrong_every: int):
    ask = request(temperature=temperature)
    [expected] = plain(ask)
    backend, oracle = recurrent(), OracleProposer([PROMPT + expected], wrong_every=wrong_every)
    [outcome] = Harness(backend, oracle).run(ask)
    assert outcome.tokens == expected
    assert oracle.accepted > 60
    assert len(backend.widths) == outcome.finished.stats.n_steps
    assert outcome.finished.stats.n_steps <= (60 if wrong_every == 3 else 30)


def test_many_conversations_at_once():
    asks = [request((*PROMPT, i), seed=i, temperature=1.0, max_tokens=80) for i in range(4)]
    expected = plain(*asks)
    texts = [(*ask.prompt, *text) for ask, text in zip(asks, expected, strict=True)]
    oracle = OracleProposer(texts, wrong_every=5)
    outcomes = Harness(recurrent(), oracle).run(*asks)
    assert [outcome.tokens for outcome in outcomes] == expected
    assert 0 < oracle.accepted < oracle.proposed


def test_wrong_guesses_never_pile_rows():
    [expected] = plain(request())
    backend = recurrent()
    oracle = OracleProposer([PROMPT + expected], wrong_every=1)
    limits = Limits(n_batch=64, draft_max=DRAFT_MAX)
    [outcome] = Harness(backend, oracle, limits=limits).run(request())
    assert outcome.tokens == expected
    assert outcome.finished.stats.n_drafted > 0
    assert outcome.finished.stats.n_accepted == 0
    assert max(backend.widths[2:]) <= 1 + 2 * DRAFT_MAX


def test_too_many_replayed_rows_split():
    asks = [request((*PROMPT, i), seed=i, max_tokens=60) for i in range(3)]
    expected = plain(*asks)
    texts = [(*ask.prompt, *text) for ask, text in zip(asks, expected, strict=True)]
    backend = recurrent(n_batch=12)
    harness = Harness(backend, OracleProposer(texts, wrong_every=4), n_slots=3)
    assert [outcome.tokens for outcome in harness.run(*asks)] == expected
    assert max(backend.widths) == 12


def test_stable_reply_has_single_rows():
    oracle = OracleProposer([PROMPT + plain(request())[0]])
    backend = recurrent()
    limits = Limits(n_batch=64, exactness="width-stable")
    [outcome] = Harness(backend, oracle, limits=limits).run(request())
    assert outcome.tokens == plain(request())[0]
    assert set(backend.widths[2:]) == {1}


def test_no_spare_sequence_no_drafts():
    oracle = OracleProposer([PROMPT + plain(request())[0]])
    harness = Harness(recurrent(n_seqs=4), oracle)
    [outcome] = harness.run(request())
    assert outcome.tokens == plain(request())[0]
    assert oracle.proposed == 0


@pytest.mark.parametrize("wrong_every", [0, 4])
def test_preempted_session_keeps_its_text(wrong_every: int):
    """Three conversations share a cache that is too small for them."""
    asks = [request((*PROMPT, i), seed=i, max_tokens=100) for i in range(3)]
    expected = plain(*asks)
    texts = [(*ask.prompt, *text) for ask, text in zip(asks, expected, strict=True)]
    harness = Harness(recurrent(n_cells=300), OracleProposer(texts, wrong_every=wrong_every))
    assert [outcome.tokens for outcome in harness.run(*asks)] == expected


# -- what drafts cost ----------------------------------------

N_TOKENS = 400  # of a long reply


@cache
def rate(error: float | None, row_s: float) -> float:
    """Return tokens per second of a long reply, on a clock where a one-row step takes a second.

    It is that of the slowest of three draft models. error: share of their wrong guesses, None for no drafts.
    """
    return N_TOKENS / max(_seconds(error, row_s, seed) for seed in range(3 if error else 1))


def _seconds(error: float | None, row_s: float, error_seed: int) -> float:
    """Return the seconds of a reply of N_TOKENS tokens."""
    clock = Clock()
    target = TimedBackend(clock, ENDLESS, 1.0 - row_s, row_s)
    target.can_trim = False
    model = FakeModel(error=error or 0.0, error_seed=error_seed, eog_rate=0.0)
    inline = DraftModel(TimedBackend(clock, model, 0.05, 0.0), clock=clock)
    harness = Harness(
        target,
        Speculator(Policy(lookup=False, leaves=1, again=True), inline=inline, clock=clock),
        limits=Limits(n_batch=64, n_chunk=16, draft_max=DRAFT_MAX),
        clock=clock,
    )
    harness.run(request(max_tokens=300))  # to learn
    began = clock.now
    draft_max = 0 if error is None else None
    [outcome] = harness.run(request((*PROMPT, 5), max_tokens=N_TOKENS, draft_max=draft_max))
    assert len(outcome.tokens) == N_TOKENS
    return clock.now - began


@pytest.mark.parametrize("error", [0.1, 0.3, 0.5, 0.8, 1.0])
@pytest.mark.parametrize("row_s", [0.02, 0.1, 0.2, 0.4, 0.8])
def test_drafts_never_slow_it_down(error: float, row_s: float):
    assert rate(error, row_s) > 0.975 * rate(None, row_s)


def test_drafts_make_it_faster():
    assert rate(0.1, 0.02) > 2.5 * rate(None, 0.02)


# -- turns ----------------------------------------


def test_next_turn_continues_at_end():
    harness = Harness(recurrent())
    [first] = harness.run(request(LONG))
    [second] = harness.run(request((*LONG, *first.tokens, 1)))
    assert second.started.n_cached == len(LONG) + len(first.tokens) - 1
    assert second.tokens == plain(request((*LONG, *first.tokens, 1)))[0]


def test_drafts_cost_only_last_tokens():
    [expected] = plain(request(LONG))
    harness = Harness(recurrent(), OracleProposer([LONG + expected], wrong_every=3))
    [first] = harness.run(request(LONG))
    [second] = harness.run(request((*LONG, *first.tokens, 1)))
    assert second.started.n_cached >= len(LONG) + len(first.tokens) - 2 - 2 * Limits().draft_max
    assert second.tokens == plain(request((*LONG, *first.tokens, 1)))[0]


@pytest.mark.parametrize("n_tail", [0, 1, DRAFT_MAX])
@pytest.mark.parametrize("n_seqs", [8, 12])
def test_guessed_end_continues_correctly(n_seqs: int, n_tail: int):
    """With a tail the result is as without drafts, otherwise without the last step."""
    ask = request(LONG, max_tokens=None)
    [expected] = Harness(FakeBackend()).run(ask)
    assert expected.finished.reason == "stop"
    text = LONG + expected.tokens
    harness = Harness(
        FakeBackend(n_seqs=n_seqs, can_trim=False, n_tail=n_tail),
        OracleProposer([text]),
        limits=Limits(n_batch=64, draft_max=DRAFT_MAX),
    )
    [first] = harness.run(ask)
    assert first.tokens == expected.tokens
    steps = [event for event in first.events if isinstance(event, Committed)]
    assert steps[-1].sources[-1] == "oracle"
    [second] = harness.run(request((*text, 5, 6), max_tokens=5))
    assert second.started.n_cached == len(text) - (1 if n_tail else 1 + len(steps[-1].tokens))
    check_engine(harness.engine)


def test_regenerated_reply_begins_at_mark():
    harness = Harness(recurrent())
    [first] = harness.run(request(LONG))
    [again] = harness.run(request(LONG))
    assert again.tokens == first.tokens
    assert again.started.n_cached == len(LONG) - TURN_MARGIN
    # a template that shows the last reply otherwise, twice
    for ending in ((1, 2, 3), (4, 5, 6)):
        turn = request((*LONG, *ending))
        [outcome] = harness.run(turn)
        assert outcome.started.n_cached == len(LONG) - TURN_MARGIN
        assert outcome.tokens == plain(turn)[0]


def test_cut_reply_leaves_mark():
    harness = Harness(recurrent())
    [id] = harness.submit(request(LONG))
    while len(harness.outcomes[id].tokens) < 30:
        harness.engine.step()
    harness.engine.cancel(id, keep=7)
    check_engine(harness.engine)
    tokens = harness.outcomes[id].tokens[:7]
    [after] = harness.run(request((*LONG, *tokens, 1)))
    assert after.started.n_cached == len(LONG) - TURN_MARGIN
    assert after.tokens == plain(request((*LONG, *tokens, 1)))[0]


def test_similar_conversation_copies_the_mark():
    system = PROMPT * 6
    harness = Harness(recurrent())
    [first] = harness.run(request(system))
    [other] = harness.run(request((*system, 7, 7, 7)))
    assert other.started.n_cached == len(system) - TURN_MARGIN
    [first_goes_on] = harness.run(request((*system, *first.tokens, 1)))
    assert first_goes_on.tokens == plain(request((*system, *first.tokens, 1)))[0]


def test_single_step_prompt_has_no_mark():
    backend = recurrent()
    short = PROMPT[: MIN_CHECKPOINT_TOKENS - 10]
    Harness(backend).run(request(short, max_tokens=5))
    assert backend.widths[0] == len(short)


def test_nothing_is_left_when_conversations_are_gone():
    backend = recurrent()
    harness = Harness(backend)
    harness.run(*(request((i, *LONG), max_tokens=20) for i in range(4)))
    while harness.engine.slots.list():
        held = [slot.id for slot in harness.engine.slots.list() if slot.n_past]
        if not held:
            break
        harness.engine.slots.erase(held[0])
    assert backend.n_used == 0


class Windowed(FakeBackend):
    """A backend that loses what the window has passed."""

    def intact(self, seq: int, length: int) -> bool:
        return length >= self.length(seq) - 20


def test_lost_beginning_is_reevaluated():
    harness = Harness(Windowed(ENDLESS))
    [first] = harness.run(request(LONG))
    [near] = harness.run(request((*LONG, *first.tokens[:-10], 1)))
    assert near.started.n_cached == len(LONG) + len(first.tokens) - 10
    for turn in (request((*LONG, *first.tokens[:30], 1)), request((*LONG[:90], 1, 2))):
        [outcome] = harness.run(turn)
        assert outcome.started.n_cached == 0
        assert outcome.tokens == plain(turn)[0]


def test_proposer_is_told_of_rows():
    """A gate then knows what evaluating them again would cost."""
    asked: list[int] = []

    class Watching(OracleProposer):
        def plan(self, step: Upcoming) -> Plan:
            plan = super().plan(step)
            asked.extend(
                ask.n_pending + len(one) for ask, one in zip(step.asks(), plan.proposals, strict=True)
            )
            return plan

    [expected] = plain(request())
    backend = recurrent()
    [outcome] = Harness(backend, Watching([PROMPT + expected], wrong_every=4)).run(request())
    assert outcome.tokens == expected
    assert asked == backend.widths
