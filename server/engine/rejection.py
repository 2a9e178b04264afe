"""Classical speculative sampling: keep a guess with probability min(1, p/q), else draw from max(0, p - q).

p is the target's distribution of a token, q the drafter's. See Leviathan, Kalman, Matias, arXiv:2211.17192,
and Chen et al., arXiv:2302.01318. The rule is only for synchronous drafting in the lead's own process. It
gives the target's distribution under two conditions: each guess is a sample of its q, and whether a guess is
judged does not depend on its token. A dishonest or outdated q breaks the first condition. So does a greedy
guess, unless q gives its token probability 1. An asynchronous drafter breaks the second condition: whether
its guesses arrive in time depends on earlier drafting, so the guesses that are judged are biased. `verify`
needs neither condition. With `verify`, the text itself is independent of drafts; with this rule, only the
distribution of texts is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from server.engine.verify import Verdict
from server.sampling.draw import Distribution
from server.sampling.noise import Floats, uniform

ACCEPT, RESIDUAL = 0x616363, 0x726573
"""Streams of a position's noise: one decides on a guess, the other draws its replacement.

Both are independent of the noise that the guess was sampled with.
"""


def judge(
    guesses: Sequence[int],
    drafted: Sequence[Distribution],
    target: Callable[[int], Distribution],
    randomness: tuple[int, int],
    stop_tokens: frozenset[int],
    limit: int,
) -> Verdict:
    """Accept or replace the guesses of a linear chain, one by one. Pure except for `target`.

    The new tokens end at the first replaced guess, one token after the last guess, at a stop token, or after
    `limit` tokens.

    Args:
        guesses: The chain; guesses[i] was sampled from drafted[i].
        drafted: The distribution q of each guess.
        target: Returns the target's distribution p of the i-th new token, after guesses[:i] and after the
            samplers. Called once per committed token, in order, so it may advance a sampler.
        randomness: (seed, position of the first new token).
        stop_tokens: Tokens that end the generation.
        limit: Maximum tokens, at least 1.

    Returns:
        The verdict; its nodes are the indices of the accepted guesses.

    Raises:
        ValueError: A guess has no probability in its distribution.
    """
    seed, position = randomness
    tokens: list[int] = []
    for guess, q in zip(guesses, drafted, strict=True):
        i = len(tokens)
        p, doubt = target(i), q.of(guess)
        if doubt <= 0.0:
            raise ValueError(f"guess {i}, token {guess}, was not sampled from its distribution")
        if uniform(seed, position + i, ACCEPT) * doubt >= p.of(guess):
            tokens.append(_sample_weighted(p, residual(p, q), uniform(seed, position + i, RESIDUAL)))
            return Verdict(tuple(tokens), tuple(range(i)))
        tokens.append(guess)
        if guess in stop_tokens or len(tokens) >= limit:
            return Verdict(tuple(tokens), tuple(range(len(tokens))))
    p = target(len(tokens))
    token = _sample_weighted(p, p.probabilities, uniform(seed, position + len(tokens), RESIDUAL))
    return Verdict((*tokens, token), tuple(range(len(tokens))))


def residual(p: Distribution, q: Distribution) -> Floats:
    """Return max(0, p - q) for each of p.ids, not normalised; return p if all are 0 by rounding."""
    at = np.minimum(np.searchsorted(q.ids, p.ids), len(q.ids) - 1)
    drafted = np.where(q.ids[at] == p.ids, q.probabilities[at], 0.0)
    left = np.maximum(0.0, p.probabilities - drafted)
    return left if left.any() else p.probabilities


def _sample_weighted(p: Distribution, weights: Floats, u: float) -> int:
    """Return the id in p.ids at which the weights' cumulative fraction passes u, a number in [0, 1)."""
    cumulative = np.cumsum(weights)
    at = int(np.searchsorted(cumulative, u * float(cumulative[-1]), side="right"))
    return int(p.ids[min(at, int(np.flatnonzero(weights)[-1]))])
