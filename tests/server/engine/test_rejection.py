"""Rejection sampling gives the target's distribution, however bad the draft."""

from __future__ import annotations

import numpy as np
import pytest

from server.engine.rejection import judge, residual
from server.sampling.draw import Distribution, distribution, draw
from server.sampling.noise import Floats
from server.sampling.params import SamplingParams
from tests.server.sampling.chi_square import UNLIKELY, deviation

NEVER: frozenset[int] = frozenset()
N_VOCAB, N = 5, 8_000


def over(*probabilities: float) -> Distribution:
    """Return a distribution over 0, 1, …; ids without probability are left out."""
    p = np.array(probabilities)
    return Distribution(np.flatnonzero(p), p[p > 0])


def dense(d: Distribution) -> Floats:
    p = np.zeros(N_VOCAB)
    p[d.ids] = d.probabilities
    return p


TARGET = [over(0.4, 0.3, 0.2, 0.1), over(0.0, 0.5, 0.0, 0.1, 0.4), over(0.1, 0.1, 0.1, 0.1, 0.6)]
FIRST = over(0.25, 0.25, 0.2, 0.2, 0.1)
"""The target's first distribution; the second is TARGET[first token % 3]."""
DRAFTS = {
    "the same": (FIRST, TARGET),
    "close": (
        over(0.3, 0.2, 0.2, 0.2, 0.1),
        [over(0.3, 0.4, 0.2, 0.1), over(0.1, 0.5, 0.0, 0.1, 0.3), TARGET[0]],
    ),
    "flat": (over(*[0.2] * 5), [over(*[0.2] * 5)] * 3),
    "elsewhere": (over(0.0, 0.0, 0.0, 0.0, 1.0), [over(0.0, 0.0, 0.0, 1.0)] * 3),
}


def sample(d: Distribution, rng: np.random.Generator) -> int:
    return int(rng.choice(d.ids, p=d.probabilities))


@pytest.mark.parametrize("name", DRAFTS)
def test_pairs_have_the_targets_joint_distribution(name: str):
    q_first, q_second = DRAFTS[name]
    rng = np.random.default_rng(11)
    counts, accepted = np.zeros((N_VOCAB, N_VOCAB)), 0
    for seed in range(N):
        first = sample(q_first, rng)
        guesses = (first, sample(q_second[first % 3], rng))
        p = [FIRST, TARGET[first % 3], FIRST]
        verdict = judge(guesses, (q_first, q_second[first % 3]), p.__getitem__, (seed, 40), NEVER, 9)
        accepted += len(verdict.nodes)
        tokens = verdict.tokens
        if len(tokens) == 1:  # the next step, without guesses
            last = TARGET[tokens[0] % 3]
            tokens += judge((), (), lambda _, last=last: last, (seed, 41), NEVER, 9).tokens
        counts[tokens[0], tokens[1]] += 1
    expected = np.array([probability * dense(TARGET[i % 3]) for i, probability in enumerate(dense(FIRST))])
    assert deviation(counts, expected) < UNLIKELY
    if name == "the same":
        assert accepted == 2 * N


def test_acceptance_is_the_overlap_of_the_distributions():
    p, q = over(0.5, 0.3, 0.2), over(0.2, 0.3, 0.5)
    rng = np.random.default_rng(3)
    accepted = sum(
        len(judge((sample(q, rng),), (q,), [p, p].__getitem__, (seed, 7), NEVER, 9).nodes)
        for seed in range(N)
    )
    overlap = float(np.minimum(dense(p), dense(q)).sum())
    assert abs(accepted / N - overlap) < 4 * (overlap * (1 - overlap) / N) ** 0.5


def test_greedy_guess_judged_wrongly_is_biased():
    """The contract forbids a guess that is not a sample of q.

    With one the tests above fail.
    """
    p, q = over(0.4, 0.3, 0.3), over(0.5, 0.25, 0.25)
    tokens = [judge((0,), (q,), [p, p].__getitem__, (seed, 7), NEVER, 9).tokens[0] for seed in range(N)]
    assert deviation(np.bincount(tokens, minlength=N_VOCAB), dense(p)) > 2 * UNLIKELY


def test_shared_noise_keeps_the_distribution():
    """p and q come from rows and parameters, guesses from the drafter's own draw.

    The uniforms must not know the noise of that draw.
    """
    rng = np.random.default_rng(5)
    target = rng.standard_normal(N_VOCAB).astype(np.float32)
    drafted = target + rng.standard_normal(N_VOCAB).astype(np.float32)
    params = SamplingParams(1.1, 4, 0.95, 0.02)
    p, q = distribution(target, params), distribution(drafted, params)
    tokens = [
        judge(
            (draw(drafted, params.reseeded(seed), 3),), (q,), [p, p].__getitem__, (seed, 3), NEVER, 1
        ).tokens[0]
        for seed in range(N)
    ]
    assert deviation(np.bincount(tokens, minlength=N_VOCAB), dense(p)) < UNLIKELY


def test_residual_by_hand():
    p, q = over(0.5, 0.0, 0.3, 0.2), over(0.1, 0.5, 0.4)
    np.testing.assert_allclose(residual(p, q), [0.4, 0.0, 0.2])
    assert residual(p, p).tolist() == p.probabilities.tolist()


def test_stop_tokens_end_accepted_runs():
    sure = [over(0.0, 1.0), over(0.0, 0.0, 1.0), over(0.0, 0.0, 0.0, 1.0)]
    asked: list[int] = []

    def target(i: int) -> Distribution:
        asked.append(i)
        return sure[i]

    def verdict(stop: frozenset[int], limit: int):
        asked.clear()
        return judge((1, 2), sure[:2], target, (0, 0), stop, limit)

    assert (verdict(NEVER, 9).tokens, verdict(NEVER, 9).nodes, asked) == ((1, 2, 3), (0, 1), [0, 1, 2])
    assert (verdict(frozenset({1}), 9).tokens, verdict(frozenset({1}), 9).nodes, asked) == ((1,), (0,), [0])
    assert (verdict(NEVER, 2).tokens, asked) == ((1, 2), [0, 1])


def test_impossible_guess_is_an_error():
    with pytest.raises(ValueError, match="token 3"):
        judge((3,), (over(0.5, 0.5),), [over(0.5, 0.5)].__getitem__, (0, 0), NEVER, 9)
