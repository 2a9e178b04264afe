"""Log probabilities of tokens: from the model before any sampler, or from the distribution of a draw."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from server.sampling.draw import Distribution

FLOOR = -9999.0  # instead of minus infinity, which JSON lacks: OpenAI's value


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Natural log probabilities, all finite, of a chosen token and of other tokens at the same position."""

    token: int
    logprob: float
    # token ids with logprobs, likeliest first, lowest id first among equals
    top: tuple[tuple[int, float], ...] = ()


def token_logprobs(
    row: npt.NDArray[np.float32], token: int, n_top: int, among: Sequence[int] = ()
) -> TokenLogprobs:
    """Return the logprobs of a chosen token and of other tokens, from the model's logits.

    Args:
        row: Logits, (vocab size,), as the model gave them, at temperature 1 and unfiltered.
        token: The chosen token.
        n_top: Number of likeliest tokens to report.
        among: Tokens to report instead of the likeliest ones.
    """
    n_top = min(n_top, len(row))
    top = float(row.max())
    total = top + float(np.log(np.exp(row - np.float32(top)).sum(dtype=np.float64)))
    best: list[tuple[int, float]] = []
    if n_top > 0:
        floor = np.partition(row, len(row) - n_top)[len(row) - n_top]
        ids = np.flatnonzero(row >= floor)
        order = np.lexsort((ids, -row[ids]))[:n_top]
        best = [(int(i), _at_least_floor(float(row[i]) - total)) for i in ids[order]]
    if among:
        told = ((other, _at_least_floor(float(row[other]) - total)) for other in among)
        best = sorted(told, key=lambda pair: (-pair[1], pair[0]))
    return TokenLogprobs(token, _at_least_floor(float(row[token]) - total), tuple(best))


def drawn_logprobs(distribution: Distribution, token: int, n_top: int) -> TokenLogprobs:
    """Return logprobs in the distribution from which `token` was drawn.

    The n_top likeliest tokens are reported, except tokens with probability 0.
    """
    ids, shares = distribution
    order = np.lexsort((ids, -shares))[:n_top]
    best = tuple((int(ids[i]), float(np.log(shares[i]))) for i in order if shares[i] > 0.0)
    chosen = distribution.of(token)
    return TokenLogprobs(token, float(np.log(chosen)) if chosen > 0.0 else FLOOR, best)


def _at_least_floor(logprob: float) -> float:
    return max(logprob, FLOOR)
