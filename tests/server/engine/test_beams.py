"""Beam search, the pure part: against exhaustive search, and the rules for ending."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from server.engine.beams import Beam, BeamSearch, Row, allowed_logprobs, best
from server.engine.request import GenerationRequest
from server.sampling.noise import gumbel, mix
from server.sampling.params import SamplingParams
from tests.server.engine.grammar_of_lists import OneOf

N_VOCAB, STOP = 4, 3
Model = Callable[[Sequence[int]], Row]


def toy(seed: int, stop: float = 0.0) -> Model:
    """Return a model whose logits depend on all tokens before.

    `stop` is added to the stop token's logit.
    """

    def row(tokens: Sequence[int]) -> Row:
        key = seed
        for token in tokens:
            key = mix(key ^ (token + 1))
        logits = gumbel(key, 0, np.arange(N_VOCAB)).astype(np.float32)
        logits[STOP] += stop
        return logits

    return row


def logprob(model: Model, tokens: Sequence[int]) -> float:
    total = 0.0
    for i, token in enumerate(tokens):
        row = model(tokens[:i]).astype(float)
        total += row[token] - math.log(sum(math.exp(x) for x in row))
    return total


def asked(n_beams: int, **fields: object) -> GenerationRequest:
    plain = GenerationRequest((1,), stop_tokens=frozenset({STOP}), n_beams=n_beams)
    return replace(plain, **fields)  # pyright: ignore[reportArgumentType]


def run(model: Model, request: GenerationRequest, limit: int) -> tuple[Beam, list[tuple[int, ...]]]:
    """Return the best beam, and what was decided after each step."""
    search, decided = BeamSearch(request, limit), list[tuple[int, ...]]()
    while not search.done:
        before = search.live
        parents = search.advance([model(beam.tokens) for beam in before])
        for beam, parent in zip(search.live, parents, strict=True):
            assert beam.tokens[:-1] == before[parent].tokens
        decided.append(search.decided().tokens)
    return search.decided(), decided


def all_texts(limit: int) -> list[tuple[int, ...]]:
    """Return every text that ends with the stop token, or has `limit` tokens without one."""
    texts = [(*head, STOP) for n in range(limit) for head in itertools.product(range(N_VOCAB - 1), repeat=n)]
    return texts + list(itertools.product(range(N_VOCAB - 1), repeat=limit))


@pytest.mark.parametrize("seed", range(12))
def test_with_enough_beams_it_is_exhaustive_search(seed: int):
    model, limit = toy(seed), 4
    result, _ = run(model, asked(3**limit), limit)
    expected = max(all_texts(limit), key=lambda text: logprob(model, text) / len(text))
    assert result.tokens == expected
    assert result.score == pytest.approx(logprob(model, expected))


@pytest.mark.parametrize("seed", range(12))
def test_one_beam_is_greedy(seed: int):
    model = toy(seed)
    greedy: list[int] = []
    while len(greedy) < 20 and STOP not in greedy:
        greedy.append(int(model(greedy).argmax()))
    assert run(model, asked(1), 20)[0].tokens == tuple(greedy)


@pytest.mark.parametrize("n_beams", [2, 3, 5])
def test_more_beams_find_likelier_texts(n_beams: int):
    means = [[run(toy(seed), asked(n), 12)[0].mean for seed in range(40)] for n in (1, n_beams)]
    assert sum(means[1]) > sum(means[0]) + 1
    assert sum(many < one - 1e-9 for one, many in zip(*means, strict=True)) <= 4


def test_decided_tokens_stay_decided():
    early = 0
    for seed in range(30):
        result, decided = run(toy(seed, stop=-2.0), asked(4), 25)
        for before, after in itertools.pairwise(decided):
            assert after[: len(before)] == before
        assert decided[-1] == result.tokens
        early += any(decided[:-1])
    assert early > 10


def test_likelier_beam_beats_better_beginning():
    """Token 0 is likelier first, but what follows token 1 is certain."""
    rows: dict[tuple[int, ...], list[float]] = {(): [0.6, 0.4, 0, 0], (0,): [0.25] * 4, (1,): [0, 0, 1, 0]}

    def model(tokens: Sequence[int]) -> Row:
        with np.errstate(divide="ignore"):
            return np.log(np.array(rows[tuple(tokens)], np.float32))

    assert run(model, asked(1), 2)[0].tokens == (0, 0)
    result, _ = run(model, asked(2), 2)
    assert result.tokens == (1, 2)
    assert result.score == pytest.approx(math.log(0.4), rel=1e-6)


def test_ended_beams_are_compared_by_their_means():
    """Stopping at once has the larger sum, going on the larger mean."""

    def model(tokens: Sequence[int]) -> Row:
        row = [0.5, 0, 0, 0.5] if not tokens else [0, 0.9, 0, 0.1] if len(tokens) < 4 else [0, 0, 0.1, 0.9]
        with np.errstate(divide="ignore"):
            return np.log(np.array(row, np.float32))

    result, _ = run(model, asked(2), 9)
    assert result.tokens == (0, 1, 1, 1, STOP)
    assert result.score < math.log(0.5)


def test_equals_go_by_beam_then_by_token():
    row = np.zeros(4)
    found = best([row, row], [0.0, 0.0], 3)
    assert [(c.parent, c.token) for c in found] == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]


def test_biases_shift_and_bans_forbid():
    row = np.array([1.0, 2.0, 0.5, 0.0], np.float32)
    plain = allowed_logprobs(row, SamplingParams(), 0, None)
    assert float(np.exp(plain).sum()) == pytest.approx(1.0)
    biased = allowed_logprobs(row, SamplingParams(logit_bias=((2, 3.0), (1, -math.inf))), 0, None)
    assert float(np.exp(biased).sum()) == pytest.approx(1.0)
    assert int(biased.argmax()) == 2
    assert biased[1] == -math.inf
    late = SamplingParams(min_tokens=2, banned_first=frozenset({1, STOP}))
    assert allowed_logprobs(row, late, 1, None).tolist() == [plain[0], -math.inf, plain[2], -math.inf]
    assert allowed_logprobs(row, late, 2, None).tolist() == plain.tolist()
    only_stop = allowed_logprobs(row, late, 0, OneOf([(STOP,)], N_VOCAB))
    assert np.flatnonzero(np.isfinite(only_stop)).tolist() == [STOP]
    everything = SamplingParams(logit_bias=tuple((token, -math.inf) for token in range(N_VOCAB)))
    assert np.isfinite(allowed_logprobs(row, everything, 0, None)).all()


@pytest.mark.parametrize("seed", range(8))
def test_grammar_beam_is_the_likeliest(seed: int):
    texts = [(0, 1, STOP), (0, 2, 2, STOP), (1, 1, 1, STOP), (2, STOP), (2, 0, 0, 1, STOP)]
    model = toy(seed)
    request = asked(6, constraint=lambda: OneOf(texts, N_VOCAB))
    result, _ = run(model, request, 9)
    assert result.tokens == max(texts, key=lambda text: logprob(model, text) / len(text))


def test_logprobs_ignore_biases():
    sampling = SamplingParams(logit_bias=((0, 1.0),))
    model = toy(3)
    result, _ = run(model, asked(3, sampling=sampling, n_logprobs=2), 6)
    assert [one.token for one in result.logprobs] == list(result.tokens)
    told = [one.logprob for one in result.logprobs]
    expected = [
        logprob(model, result.tokens[: i + 1]) - logprob(model, result.tokens[:i]) for i in range(len(told))
    ]
    assert told == pytest.approx(expected, abs=1e-5)
    assert all(len(one.top) == 2 for one in result.logprobs)
