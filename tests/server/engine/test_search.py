"""Beam searches in the engine: the toy fails when a beam's cells are not what its tokens say."""

from __future__ import annotations

from dataclasses import replace

import pytest

from server.engine.beams import Beam, BeamSearch
from server.engine.events import Committed, Failed
from server.engine.request import GenerationRequest
from server.engine.scheduler import Limits
from server.errors import BackendError, InvalidRequestError
from server.llama.backend import Batch, Logits
from server.sampling.noise import mix
from tests.checks import check_engine
from tests.fake_backend import FakeBackend, FakeModel, FakeVocabulary
from tests.server.engine.grammar_of_lists import OneOf
from tests.support import EOG, PROMPT, Harness, OracleProposer, request

FLAT = FakeModel(eog_rate=0.03, sharpness=0.5)  # many continuations are about as likely
ENDLESS = FakeModel(eog_rate=0.0, sharpness=0.5)
N = 60


def beams(n: int, first: int = 0, *, max_tokens: int | None = N) -> GenerationRequest:
    prompt = (first, *PROMPT) if first else PROMPT
    return replace(request(prompt, max_tokens=max_tokens), n_beams=n)


def expected_of(ask: GenerationRequest, model: FakeModel = FLAT, limit: int = N) -> Beam:
    """Return the result of a search without a cache, where every row is evaluated from all tokens."""
    chain = 0
    for token in ask.prompt:
        chain = mix(chain + token + 1)

    def row(tokens: tuple[int, ...]) -> Logits:
        at = chain
        for token in tokens:
            at = mix(at + token + 1)
        return model.logits(at)

    search = BeamSearch(ask, limit)
    while not search.done:
        search.advance([row(beam.tokens) for beam in search.live])
    return search.decided()


def harness(model: FakeModel = FLAT, *, n_cells: int = 4096, n_slots: int = 4, n_ctx: int = 1024) -> Harness:
    fake = FakeBackend(model, n_cells=n_cells, n_ctx=n_ctx)
    return Harness(fake, n_slots=n_slots, limits=Limits(n_batch=64, n_chunk=16))


@pytest.mark.parametrize("n", [2, 3, 5, 8])
@pytest.mark.parametrize("first", range(3))
@pytest.mark.parametrize(("model", "reason"), [(FLAT, "stop"), (ENDLESS, "length")])
def test_beam_search_equals_uncached_search(model: FakeModel, reason: str, n: int, first: int):
    ask = beams(n, first)
    [outcome] = harness(model).run(ask)
    expected = expected_of(ask, model)
    assert outcome.tokens == expected.tokens
    assert outcome.finished.reason == reason
    assert (expected.tokens[-1] in EOG) == (reason == "stop")
    assert outcome.finished.stats.n_predicted == len(expected.tokens)
    assert outcome.finished.stats.n_steps >= len(expected.tokens)


def test_search_beats_greedy():
    def total(n: int) -> float:
        ask = replace(beams(n), n_logprobs=0)
        [outcome] = harness(ENDLESS).run(ask)
        logprobs = [one for event in outcome.events if isinstance(event, Committed) for one in event.logprobs]
        assert [one.token for one in logprobs] == list(outcome.tokens)
        return sum(one.logprob for one in logprobs)

    assert total(8) > total(1) + 1


def test_common_text_is_sent_early():
    sharp = FakeModel(eog_rate=0.0, sharpness=2.0)
    [outcome] = harness(sharp).run(beams(3))
    told = [event for event in outcome.events if isinstance(event, Committed)]
    assert len(told) > 5
    assert all(event.tokens for event in told)
    assert len(told[-1].tokens) < N // 2
    assert outcome.tokens == expected_of(beams(3), sharp).tokens


def test_beams_share_and_never_repeat():
    one = harness(ENDLESS)
    [outcome] = one.run(beams(4))
    assert sum(one.backend.widths) == len(PROMPT) + 4 * (N - 1)
    assert outcome.finished.stats.n_steps == N


def test_beside_other_sessions_nothing_changes():
    asks = [beams(4, 1), request((2, *PROMPT), temperature=1.0), beams(3, 3), request((4, *PROMPT))]
    expected = [harness().run(ask)[0].tokens for ask in asks]
    together = harness()
    assert [outcome.tokens for outcome in together.run(*asks)] == expected
    assert max(together.backend.widths) >= 9


def test_search_waits_for_sequences():
    asks = [beams(8, first) for first in range(1, 5)]
    many = harness()
    ids = many.submit(*asks)
    most_active = 0
    while many.engine.step():
        most_active = max(most_active, many.engine.n_active)
    check_engine(many.engine)
    assert most_active == 1
    assert [many.outcomes[id].tokens for id in ids] == [expected_of(ask).tokens for ask in asks]


@pytest.mark.parametrize("n_steps", [1, 2, 4, 5, 6, 9, 30])
@pytest.mark.parametrize("keep", [None, 0, 3])
def test_cancelled_in_the_middle_everything_is_free(n_steps: int, keep: int | None):
    one = harness(ENDLESS)
    [id] = one.submit(beams(8))
    for _ in range(n_steps):
        one.engine.step()
    one.engine.cancel(id, keep)
    assert one.outcomes[id].finished.reason == "cancelled"
    check_engine(one.engine)
    assert one.backend.n_used <= len(PROMPT)
    [again] = one.run(beams(8))
    assert again.tokens == expected_of(beams(8), ENDLESS).tokens
    if n_steps > 4:
        assert again.started.n_cached == len(PROMPT) - 1


def test_searched_prompt_stays_cached():
    one = harness()
    [first] = one.run(beams(4))
    turn = request((*PROMPT, *first.tokens, 7))
    [second] = one.run(turn)
    assert second.started.n_cached == len(PROMPT)
    assert second.tokens == harness().run(turn)[0].tokens


def test_search_shares_a_running_prompt():
    one = harness(ENDLESS)
    [id] = one.submit(beams(3))
    while not one.outcomes[id].tokens:
        one.engine.step()
    ask = request((*PROMPT, *one.outcomes[id].tokens, 9), max_tokens=20)
    [beside] = one.submit(ask)
    while one.engine.step():
        pass
    check_engine(one.engine)
    assert one.outcomes[beside].started.n_cached == len(PROMPT)
    assert one.outcomes[beside].tokens == harness(ENDLESS).run(ask)[0].tokens
    assert one.outcomes[id].tokens == expected_of(beams(3), ENDLESS).tokens


def test_search_has_no_drafts():
    ask = beams(3)
    oracle = OracleProposer([PROMPT + expected_of(ask).tokens])
    [outcome] = Harness(FakeBackend(FLAT), oracle).run(ask)
    assert outcome.tokens == expected_of(ask).tokens
    assert oracle.proposed == 0
    assert oracle.idle()


@pytest.mark.parametrize("n", [2, 5])
def test_a_grammar_is_respected(n: int):
    texts = [tuple(text.encode()) + (FakeVocabulary.eos,) for text in ("no", "nothing", "yes", "y", "maybe")]
    ask = replace(beams(n), constraint=lambda: OneOf(texts, FakeVocabulary.size))
    [outcome] = harness(ENDLESS).run(ask)
    assert outcome.tokens in texts
    assert outcome.tokens == expected_of(ask, ENDLESS).tokens
    assert outcome.finished.reason == "stop"


def test_preempted_search_repeats_no_text():
    sharp = FakeModel(eog_rate=0.0, sharpness=1.2)
    asks = [request((1, *PROMPT), max_tokens=150), beams(4, 2)]
    crowded = harness(sharp, n_cells=230)
    plain, search = crowded.submit(*asks)
    told_when_pushed_out = 0
    while crowded.engine.step():
        if crowded.engine.n_waiting:
            told_when_pushed_out = len(crowded.outcomes[search].tokens)
    check_engine(crowded.engine)
    limit = (230 - len(asks[1].prompt)) // 4
    assert 0 < told_when_pushed_out < limit
    assert crowded.outcomes[search].tokens == expected_of(asks[1], sharp, limit).tokens
    assert crowded.outcomes[search].finished.stats.n_predicted == limit
    assert crowded.outcomes[plain].tokens == harness(sharp).run(asks[0])[0].tokens


def test_search_without_cells_ends_by_length():
    n_cells = len(PROMPT) + 4 * 20 + 3
    [outcome] = harness(ENDLESS, n_cells=n_cells).run(beams(4, max_tokens=None))
    assert outcome.finished.reason == "length"
    assert outcome.tokens == expected_of(beams(4), ENDLESS, limit=20).tokens


def test_the_context_ends_a_search():
    [outcome] = harness(ENDLESS, n_ctx=70).run(beams(2, max_tokens=None))
    assert outcome.finished.reason == "length"
    assert len(outcome.tokens) == 70 - len(PROMPT)


def test_one_token_is_the_likeliest():
    [outcome] = harness(ENDLESS).run(beams(8, max_tokens=1))
    assert outcome.tokens == harness(ENDLESS).run(request(max_tokens=1))[0].tokens


def test_failed_decode_spares_the_engine(monkeypatch: pytest.MonkeyPatch):
    one = harness(ENDLESS)
    [id] = one.submit(beams(5))
    for _ in range(8):
        one.engine.step()

    def fail(self: FakeBackend, batch: Batch) -> Logits:
        raise BackendError("llama_decode returned -3")

    with monkeypatch.context() as patch:
        patch.setattr(FakeBackend, "decode", fail)
        one.engine.step()
    assert isinstance(one.outcomes[id].events[-1], Failed)
    check_engine(one.engine)
    assert one.backend.n_used == 0
    [after] = one.run(beams(5))
    assert after.tokens == expected_of(beams(5), ENDLESS).tokens


@pytest.mark.parametrize(
    ("fake", "ask"),
    [
        (FakeBackend(), beams(9)),
        (FakeBackend(n_seqs=6), beams(7)),
        (FakeBackend(can_trim=False), beams(2)),
        (FakeBackend(), replace(beams(2), n_keep=0)),
    ],
)
def test_impossible_search_is_refused(fake: FakeBackend, ask: GenerationRequest):
    engine = Harness(fake).engine
    with pytest.raises(InvalidRequestError) as caught:
        engine.submit(1, ask)
    assert caught.value.param == "n_beams"
    check_engine(engine)


def test_stable_search_is_the_same():
    ask = beams(4)
    stable = replace(ask, speculation=replace(ask.speculation, exactness="width-stable"))
    one = harness()
    outcomes = one.run(stable, request((9, *PROMPT)))
    assert outcomes[0].tokens == expected_of(ask).tokens
    assert max(one.backend.widths[4 : 4 + len(outcomes[0].tokens)]) <= 4
