"""A reply that was begun before goes on as if it had never been interrupted, wherever it was."""

from __future__ import annotations

from dataclasses import replace

import pytest

from server.engine.events import Committed, Failed, Finished, Started
from server.engine.proposer import NoProposer
from server.engine.request import GenerationRequest, Speculation
from server.engine.scheduler import Limits
from server.sampling.logprobs import TokenLogprobs
from tests.fake_backend import FakeBackend
from tests.invariance.conversation import KINDS, Kind, asks_of
from tests.server.engine.shifting import N_CTX, asked, backend
from tests.support import EOG, PROMPT, Harness, OracleProposer, Outcome, request

STABLE = Limits(n_batch=64, n_chunk=16, stable_width=6, exactness="width-stable")
CUTS = (1, 2, 5, 6, 7, 13, 40)


def parts(outcome: Outcome) -> tuple[tuple[int, ...], list[TokenLogprobs]]:
    steps = [event for event in outcome.events if isinstance(event, Committed)]
    return outcome.tokens, [one for step in steps for one in step.logprobs]


def again(
    ask: GenerationRequest, begun: tuple[int, ...], mus: list[float] | None = None
) -> GenerationRequest:
    return replace(ask, begun=begun, mu=mus[len(begun) - 1] if mus and begun else None)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
@pytest.mark.parametrize("limits", [None, STABLE], ids=["default", "width-stable"])
def test_begun_reply_goes_on(kind: Kind, limits: Limits | None):
    for ask in asks_of(kind, 1.0):
        mus = list[float]()
        whole, logprobs = parts(Harness(limits=limits).run(replace(ask.request, mus=mus))[0])
        assert len(mus) == (len(whole) if ask.request.sampling.mirostat else 0)
        for n in (n for n in CUTS if n < len(whole)):
            [outcome] = Harness(limits=limits).run(again(ask.request, whole[:n], mus))
            assert parts(outcome) == (whole[n:], logprobs[n:])
            assert outcome.finished.stats.n_predicted == len(whole)
            assert outcome.finished.stats.n_prompt == len(ask.request.prompt)


def test_guesses_follow_begun_tokens():
    ask = request(temperature=1.0)
    whole = Harness().run(ask)[0].tokens
    proposer = OracleProposer([(*PROMPT, *whole)], wrong_every=5)
    [outcome] = Harness(proposer=proposer).run(again(ask, whole[:30]))
    assert outcome.tokens == whole[30:]
    assert proposer.accepted > 20


def test_begun_tokens_are_prefilled_beside_others():
    asks = [request(temperature=1.0, seed=seed) for seed in range(4)]
    whole = [one.tokens for one in Harness().run(*asks)]
    begun = [again(ask, text[: 10 * i]) for i, (ask, text) in enumerate(zip(asks, whole, strict=True))]
    for outcome, text, one in zip(Harness().run(*begun), whole, begun, strict=True):
        assert outcome.tokens == text[len(one.begun) :]


def test_stable_begun_steps_share_one_width():
    ask = request(temperature=1.0)
    whole = Harness(limits=STABLE).run(ask)[0].tokens
    for n in CUTS:
        toy = FakeBackend()
        [outcome] = Harness(toy, limits=STABLE).run(again(ask, whole[:n]))
        assert outcome.tokens == whole[n:]
        assert toy.widths == [len(PROMPT), *[STABLE.stable_width] * (len(toy.widths) - 1)]


@pytest.mark.parametrize("can_shift", [True, False])
@pytest.mark.parametrize("can_trim", [True, False])
def test_begun_reply_shifts_its_context(can_shift: bool, can_trim: bool):
    def toy() -> FakeBackend:
        return backend(can_shift=can_shift, can_trim=can_trim)

    ask = asked(temperature=1.0, n=200)
    whole = Harness(toy()).run(ask)[0].tokens
    for n in (5, N_CTX - len(PROMPT), N_CTX, 130, 199):
        [outcome] = Harness(toy()).run(again(ask, whole[:n]))
        assert outcome.tokens == whole[n:]


def test_reply_that_had_ended_ends():
    whole = Harness().run(request(stop_tokens=frozenset()))[0].tokens
    stop = whole[9]
    for ask, reason in (
        (request(stop_tokens=EOG | {stop}), "stop"),
        (request(stop_tokens=frozenset(), max_tokens=10), "length"),
    ):
        tokens = Harness().run(ask)[0].tokens
        [outcome] = Harness().run(again(ask, tokens))
        assert [type(event) for event in outcome.events] == [Started, Finished]
        assert outcome.finished.reason == reason
        assert outcome.finished.stats.n_predicted == len(tokens)


def test_begun_tokens_must_suit_the_grammar():
    [ask] = asks_of(next(kind for kind in KINDS if kind.grammar), 1.0)
    harness = Harness(proposer=NoProposer())
    with pytest.raises(Exception, match="does not allow its own tokens"):
        harness.submit(again(ask.request, (ord("7"),)))


def test_begun_tokens_come_from_the_cache():
    ask = replace(request(temperature=1.0), speculation=Speculation())
    harness = Harness()
    whole = harness.run(ask)[0].tokens
    harness.backend.widths.clear()
    [outcome] = harness.run(again(ask, whole[:40]))
    assert outcome.tokens == whole[40:]
    assert outcome.started.n_cached == len(PROMPT)
    assert max(harness.backend.widths) == 1
    assert not [event for event in outcome.events if isinstance(event, Failed)]
