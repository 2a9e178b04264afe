"""Prompts that are evaluated beforehand: in idle time only, and never twice."""

from __future__ import annotations

from dataclasses import replace

from server.engine.events import Finished
from server.engine.request import GenerationRequest
from server.engine.scheduler import Limits
from server.sampling.params import SamplingParams
from tests.checks import check_engine
from tests.fake_backend import FakeBackend
from tests.support import Harness, OracleProposer

LIMITS = Limits(n_batch=64, n_chunk=16, leaves=1)
PROMPT = [(7 * i) % 200 + 1 for i in range(200)]


def harness(n_slots: int = 2) -> Harness:
    return Harness(FakeBackend(n_seqs=4), OracleProposer([]), n_slots=n_slots, limits=LIMITS)


def ask(tokens: list[int], *, precompute: bool = False) -> GenerationRequest:
    request = GenerationRequest(tokens, SamplingParams(0.0), 5, precompute=precompute)
    return replace(request, max_tokens=None) if precompute else request


def ending(found: Harness, id: int) -> str | None:
    last = found.outcomes[id].events[-1] if found.outcomes[id].events else None
    return last.reason if isinstance(last, Finished) else None


def test_precomputed_prompt_is_not_reevaluated():
    found = harness()
    plain = harness().run(ask([*PROMPT, 9]))[0].tokens
    (before,) = found.run(ask(PROMPT, precompute=True))
    assert before.tokens == ()
    assert before.finished.reason == "stop"
    (outcome,) = found.run(ask([*PROMPT, 9]))
    assert outcome.started.n_cached == len(PROMPT) - 1
    assert outcome.tokens == plain


def test_precompute_yields_and_keeps_work():
    found = harness(n_slots=1)
    (id,) = found.submit(ask(PROMPT, precompute=True))
    for _ in range(4):
        found.engine.step()
    (outcome,) = found.run(ask([*PROMPT, 9]))
    assert ending(found, id) == "cancelled"
    assert 32 <= outcome.started.n_cached < len(PROMPT) - 1


def test_precompute_ends_while_others_run():
    found = harness()
    (busy,) = found.submit(ask([5, 6, 7]))
    (idle,) = found.submit(ask(PROMPT, precompute=True))
    found.engine.step()
    assert ending(found, idle) == "cancelled"
    assert not found.outcomes[busy].ended


def test_patient_precompute_waits_for_others():
    found = harness()
    (busy,) = found.submit(ask([5, 6, 7]))
    found.engine.step()
    (idle,) = found.submit(replace(ask(PROMPT, precompute=True), patient=True))
    while not found.outcomes[busy].ended:
        assert not found.outcomes[idle].events
        found.engine.step()
    while found.engine.step():
        pass
    assert ending(found, idle) == "stop"
    check_engine(found.engine)


def test_cached_precompute_ends_at_once():
    found = harness()
    found.run(ask(PROMPT, precompute=True))
    (again,) = found.run(ask(PROMPT, precompute=True))
    assert again.started.n_cached == len(PROMPT) - 1
    assert again.finished.reason == "stop"


def test_precompute_cancels_at_any_time():
    found = harness()
    ids = found.submit(ask(PROMPT, precompute=True), ask(PROMPT[::-1], precompute=True))
    found.engine.step()
    for id in ids:
        found.engine.cancel(id)
        assert ending(found, id) == "cancelled"
    while found.engine.step():
        pass
    check_engine(found.engine)
