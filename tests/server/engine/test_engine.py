"""The engine over the toy model: it fails loudly when the KV cache is not what the tokens say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest

from server.engine.events import Committed, Failed, Finished, Started
from server.engine.meter import StepKind
from server.engine.request import GenerationRequest
from server.engine.scheduler import Limits
from server.errors import BackendError, InvalidRequestError
from server.llama.backend import Batch, Logits
from tests.checks import check_engine
from tests.fake_backend import FakeBackend, FakeModel, FakeVocabulary
from tests.support import EOG, PROMPT, Harness, OracleProposer, request

ENDLESS = FakeModel(eog_rate=0.0)


def plain(*requests: GenerationRequest, model: FakeModel | None = None) -> list[tuple[int, ...]]:
    """Return the replies of a server with room for everything and without drafts."""
    return [outcome.tokens for outcome in Harness(FakeBackend(model or FakeModel())).run(*requests)]


def test_events_come_in_order():
    [outcome] = Harness(FakeBackend(ENDLESS)).run(request(max_tokens=10))
    assert outcome.events[0] == Started(len(PROMPT), 0)
    assert all(isinstance(event, Committed) for event in outcome.events[1:-1])
    stats = outcome.finished.stats
    assert (stats.n_prompt, stats.n_cached, stats.n_predicted, stats.n_steps) == (len(PROMPT), 0, 10, 10)
    assert outcome.finished.reason == "length"


def test_a_stop_token_is_the_last_token():
    [outcome] = Harness().run(request(max_tokens=None))
    assert outcome.finished.reason == "stop"
    assert outcome.tokens[-1] in EOG
    assert not EOG & set(outcome.tokens[:-1])


def test_the_context_ends_a_reply():
    [outcome] = Harness(FakeBackend(ENDLESS, n_ctx=80)).run(request(max_tokens=None))
    assert outcome.finished.reason == "length"
    assert len(PROMPT) + len(outcome.tokens) == 80


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("wrong_every", [0, 2, 3, 7])
def test_drafts_change_only_step_count(temperature: float, wrong_every: int):
    ask = request(temperature=temperature)
    [expected] = Harness().run(ask)
    oracle = OracleProposer([PROMPT + expected.tokens], wrong_every=wrong_every)
    [drafted] = Harness(proposer=oracle).run(ask)
    assert drafted.tokens == expected.tokens
    assert drafted.finished.reason == expected.finished.reason
    assert drafted.finished.stats.n_steps < expected.finished.stats.n_steps
    assert drafted.finished.stats.n_accepted == oracle.accepted > 0
    assert (oracle.accepted < oracle.proposed) == bool(wrong_every)
    assert drafted.finished.stats.drafters["oracle"].accepted == oracle.accepted


def test_max_tokens_ends_an_accepted_run_exactly():
    [whole] = Harness(FakeBackend(ENDLESS)).run(request(max_tokens=40))
    for n in range(1, 12):
        oracle = OracleProposer([PROMPT + whole.tokens])
        [outcome] = Harness(FakeBackend(ENDLESS), oracle).run(request(max_tokens=n))
        assert outcome.tokens == whole.tokens[:n]


def test_a_request_may_refuse_drafts():
    [expected] = Harness().run(request())
    oracle = OracleProposer([PROMPT + expected.tokens])
    [outcome] = Harness(proposer=oracle).run(request(draft_max=0))
    assert outcome.tokens == expected.tokens
    assert oracle.proposed == 0


def test_sessions_share_decodes_and_keep_texts():
    asks = [request(PROMPT + (65 + i,), seed=i, temperature=1.0) for i in range(7)]
    expected = [Harness().run(ask)[0].tokens for ask in asks]
    harness = Harness()
    assert [outcome.tokens for outcome in harness.run(*asks)] == expected
    assert max(harness.backend.widths) > 4


def test_long_prompt_stalls_no_session():
    backend = FakeBackend(ENDLESS, n_ctx=900)
    harness = Harness(backend, limits=Limits(n_batch=64, n_chunk=16))
    [first] = harness.submit(request(max_tokens=60))
    harness.engine.step()
    another = (*b"Another one. ", *PROMPT * 10)
    [second] = harness.submit(request(another, max_tokens=3))
    before = len(harness.outcomes[first].tokens)
    steps = 0
    while not harness.outcomes[second].tokens:
        harness.engine.step()
        steps += 1
    assert steps >= len(PROMPT) * 10 // 16
    assert len(harness.outcomes[first].tokens) - before == steps
    while harness.engine.step():
        pass
    assert harness.outcomes[second].tokens == plain(request(another, max_tokens=3), model=ENDLESS)[0]


def test_twin_of_long_prompt_waits_alone():
    backend = FakeBackend(ENDLESS)
    harness = Harness(backend, limits=Limits(n_batch=64, n_chunk=16))
    long = PROMPT * 10
    first, twin, other = harness.submit(request(long), request(long, seed=8), request((1, 2), max_tokens=3))
    while not harness.outcomes[other].ended:
        assert harness.engine.step()
    assert harness.engine.n_waiting == 1
    assert not harness.outcomes[first].tokens
    while harness.engine.step():
        pass
    check_engine(harness.engine)
    assert harness.outcomes[twin].started.n_cached > len(long) - 64
    assert harness.outcomes[twin].tokens == plain(request(long, seed=8), model=ENDLESS)[0]


def test_next_turn_evaluates_only_news():
    harness = Harness()
    [first] = harness.run(request())
    history = PROMPT + first.tokens
    [second] = harness.run(request((*history, 10, 11, 12)))
    assert second.started.n_cached == len(history) - 1
    assert second.tokens == plain(request((*history, 10, 11, 12)))[0]


def test_branch_is_trimmed_to_prefix():
    harness = Harness()
    [first] = harness.run(request())
    branch = PROMPT + first.tokens[:30] + (1, 2, 3)
    [second] = harness.run(request(branch))
    assert second.started.n_cached == len(PROMPT) + 30
    assert second.tokens == plain(request(branch))[0]


def test_repeated_prompt_keeps_first_reply():
    harness = Harness(FakeBackend(ENDLESS))
    [first] = harness.run(request())
    [again] = harness.run(request())
    assert again.started.n_cached == len(PROMPT) - 1
    assert again.tokens == first.tokens
    [other] = harness.run(request(PROMPT[:-9] + (1, 2)))
    assert other.started.n_cached == len(PROMPT) - 9
    assert other.tokens == plain(request(PROMPT[:-9] + (1, 2)), model=ENDLESS)[0]
    [turn] = harness.run(request((*PROMPT, *first.tokens, 5)))
    assert turn.started.n_cached == len(PROMPT + first.tokens) - 1
    assert turn.tokens == plain(request((*PROMPT, *first.tokens, 5)), model=ENDLESS)[0]


def test_cancel_frees_slot_and_keeps_prefix():
    harness = Harness(FakeBackend(ENDLESS), n_slots=1)
    [running, waiting] = harness.submit(request(max_tokens=None), request((1, 2, 3), max_tokens=2))
    for _ in range(10):
        harness.engine.step()
    harness.engine.cancel(running, keep=4)
    harness.engine.cancel(running)
    assert harness.outcomes[running].finished.reason == "cancelled"
    harness.engine.step()
    assert harness.outcomes[waiting].tokens
    while harness.engine.step():
        pass
    check_engine(harness.engine)
    [again] = harness.run(request(PROMPT + harness.outcomes[running].tokens))
    assert again.started.n_cached == len(PROMPT) + 3  # never the last one kept: who guessed it shall not show


def test_cancelling_a_waiting_request_ends_it():
    harness = Harness(n_slots=1)
    [_, waiting] = harness.submit(request(), request())
    harness.engine.step()
    harness.engine.cancel(waiting)
    assert isinstance(harness.outcomes[waiting].events[-1], Finished)


def test_idle_conversations_make_room_for_active_ones():
    harness = Harness(FakeBackend(ENDLESS, n_cells=300))
    for start in range(6):
        ask = request((start, *PROMPT), max_tokens=60)
        [outcome] = harness.run(ask)
        assert outcome.tokens == plain(ask, model=ENDLESS)[0]


def test_outgrowing_sessions_all_finish():
    asks = [request((i, *PROMPT), max_tokens=150) for i in range(4)]
    harness = Harness(FakeBackend(ENDLESS, n_cells=420, n_ctx=420))
    assert [outcome.tokens for outcome in harness.run(*asks)] == plain(*asks, model=ENDLESS)


def test_steps_count_rows_cells_tokens():
    harness = Harness(FakeBackend(ENDLESS))
    harness.run(request(max_tokens=5))
    kinds = harness.engine.meter.kinds
    assert kinds == {StepKind(1, 48, 48): 4}, "the prompt's step has other rows"
    harness.run(*(request((i, *PROMPT) * 3, max_tokens=5) for i in range(2)))
    added = {kind: n for kind, n in kinds.items() if kind.n_tokens > 48}
    assert {(kind.n_rows, kind.n_tokens) for kind in added} == {(2, 192)}
    assert all(kind.n_cells > kind.n_tokens for kind in added), "those of both"


def test_failed_decode_spares_the_engine(monkeypatch: pytest.MonkeyPatch):
    harness = Harness()
    [id] = harness.submit(request())
    harness.engine.step()

    def fail(self: FakeBackend, batch: Batch) -> Logits:
        raise BackendError("llama_decode returned -3")

    with monkeypatch.context() as patch:
        patch.setattr(FakeBackend, "decode", fail)
        harness.engine.step()
    assert isinstance(harness.outcomes[id].events[-1], Failed)
    check_engine(harness.engine)
    [after] = harness.run(request())
    assert after.tokens == plain(request())[0]
    assert after.started.n_cached == 0


@pytest.mark.parametrize("can_copy", [True, False])
def test_untrimmable_model_continues_at_end(can_copy: bool):
    [expected] = Harness().run(request())
    oracle = OracleProposer([[*PROMPT, *expected.tokens]])
    harness = Harness(FakeBackend(can_trim=False, can_copy=can_copy), oracle)
    [outcome] = harness.run(request())
    assert outcome.tokens == expected.tokens
    assert bool(oracle.proposed) == can_copy
    [again] = harness.run(request(PROMPT + expected.tokens + (1,)))
    assert again.started.n_cached == len(PROMPT + expected.tokens) - 1
    [branch] = harness.run(request(PROMPT + expected.tokens[:5]))
    assert branch.started.n_cached == 0


class Exhausted:
    """A constraint that gives up after a few tokens."""

    def __init__(self) -> None:
        self._left = 3

    def allows(self, token: int) -> bool:
        return True

    def mask(self) -> npt.NDArray[np.bool_]:
        return np.ones(FakeVocabulary.size, np.bool_)

    def accept(self, token: int) -> None:
        self._left -= 1
        if not self._left:
            raise InvalidRequestError("the grammar is too ambiguous", param="grammar")

    def forced(self) -> tuple[int, ...]:
        return ()

    def n_allowed(self, tokens: Sequence[int]) -> int:
        return len(tokens)


@pytest.mark.parametrize("n_beams", [1, 2])
def test_failing_grammar_ends_its_session(n_beams: int):
    harness = Harness(FakeBackend(ENDLESS))
    limited = replace(request(), constraint=Exhausted, n_beams=n_beams)
    bad, good = harness.run(limited, request((1, 2), max_tokens=20))
    assert isinstance(bad.events[-1], Failed)
    assert len(bad.tokens) <= 2
    assert len(good.tokens) == 20
