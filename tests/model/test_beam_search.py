"""Beam search with a real model: each beam attends to the cells of its own tokens."""

from __future__ import annotations

from dataclasses import replace

import pytest

from server.engine.engine import Engine
from server.engine.events import Committed
from server.engine.proposer import NoProposer
from server.engine.request import GenerationRequest
from server.llama.backend import Batch
from server.llama.llamacpp import LlamaBackend
from server.sampling.logprobs import TokenLogprobs, token_logprobs
from server.sampling.params import SamplingParams
from tests.checks import check_engine
from tests.support import Outcome

pytestmark = [pytest.mark.model, pytest.mark.timeout(300)]

QUESTION = "<|im_start|>user\nWhat is a generator?<|im_end|>\n<|im_start|>assistant\n"


def asked(backend: LlamaBackend) -> GenerationRequest:
    prompt = backend.vocab.tokenize(QUESTION, special=True)
    return GenerationRequest(prompt, SamplingParams(0.0), 50, backend.vocab.eog, n_logprobs=0)


def run(backend: LlamaBackend, *asks: GenerationRequest) -> list[list[TokenLogprobs]]:
    """Return the logprobs of each reply's tokens."""
    outcomes = [Outcome() for _ in asks]
    engine = Engine(backend, NoProposer(), lambda id, event: outcomes[id].events.append(event))
    for id, ask in enumerate(asks):
        engine.submit(id, ask)
    while engine.step():
        pass
    check_engine(engine)
    return [
        [one for event in outcome.events if isinstance(event, Committed) for one in event.logprobs]
        for outcome in outcomes
    ]


def mean(told: list[TokenLogprobs]) -> float:
    return sum(one.logprob for one in told) / len(told)


def evaluated(backend: LlamaBackend, ask: GenerationRequest, tokens: list[int]) -> list[float]:
    """Return the tokens' logprobs by one decode of the whole text."""
    for seq in range(backend.n_seqs):
        backend.trim(seq, 0)
    batch = Batch()
    batch.extend(0, 0, [*ask.prompt, *tokens[:-1]], len(tokens))
    rows = backend.decode(batch)
    return [token_logprobs(row, token, 0).logprob for row, token in zip(rows, tokens, strict=True)]


def test_search_finds_the_likelier_reply(f32_target: LlamaBackend):
    ask = asked(f32_target)
    found = {n: run(f32_target, replace(ask, n_beams=n))[0] for n in (1, 4, 8)}
    for told in found.values():
        expected = evaluated(f32_target, ask, [one.token for one in told])
        assert [one.logprob for one in told] == pytest.approx(expected, abs=1e-3)
    assert mean(found[4]) > mean(found[1])
    assert mean(found[8]) > mean(found[1])


def test_beside_other_sessions_it_finds_the_same(f32_target: LlamaBackend):
    ask = replace(asked(f32_target), n_beams=4)
    [alone] = run(f32_target, ask)
    together = run(f32_target, replace(ask, n_beams=1), ask, replace(ask, n_beams=2))
    assert [one.token for one in together[1]] == [one.token for one in alone]
