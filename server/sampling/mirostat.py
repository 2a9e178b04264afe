"""Mirostat (arXiv:2007.14966): keeps the surprise of the text near a target.

Both versions are llama.cpp's and replace the chain of samplers.
"""

from __future__ import annotations

import math

import numpy as np

from server.sampling.candidates import Candidates, top_k
from server.sampling.draw import softmax
from server.sampling.params import SamplingParams
from server.sampling.peaks import Peaks

_M = 100  # tokens from which version 1 estimates the exponent of Zipf's law, as in llama.cpp


class Mirostat:
    """State of one generation: mu, the maximum surprise, in bits, of a token that may be drawn."""

    def __init__(self, params: SamplingParams):
        self._params = params
        self.mu = 2.0 * params.mirostat_tau
        self.mus: list[float] | None = None  # gets mu after each token, if somebody wants to know

    def choose(self, c: Candidates, n_vocab: int, position: int) -> tuple[int, float]:
        """Draw a token for `position`; return it with its surprise in bits. Filters c; does not change mu."""
        if self._params.mirostat == 1:
            top_k(c, _zipf_k(c, self.mu, n_vocab))
        else:
            _truncate_surprising(c, self.mu)
        at = c.choose(self._params.seed, position)
        return c.token(at), -math.log2(float(softmax(c.logits.astype(np.float64))[at]))

    def learn(self, surprise: float) -> None:
        """Adapt mu to the surprise, in bits, of a committed token."""
        self.mu -= self._params.mirostat_eta * (surprise - self._params.mirostat_tau)
        if self.mus is not None:
            self.mus.append(self.mu)


def _zipf_k(c: Candidates, mu: float, n_vocab: int) -> int:
    """Return the number of tokens with a surprise of at most mu bits, assuming Zipf's law.

    It is k = ((s - 1) 2^mu / (1 - N^(1 - s)))^(1 / s), where s is the exponent fitted to the likeliest tokens
    and N is n_vocab.
    """
    if len(c) < 2:
        return 1
    n = min(_M, len(c))
    near = c.logits[Peaks(c.logits).likeliest(n)]
    head = np.sort(near.astype(np.float64))[::-1][:n]
    ratios = np.log(np.arange(2, n + 1) / np.arange(1, n))
    s = float(ratios @ (head[:-1] - head[1:])) / float(ratios @ ratios)
    excess, log_n = s - 1.0, math.log(n_vocab)
    # (s - 1) / (1 - N^(1 - s)), which is 1 / ln N where s = 1
    slope = excess / -math.expm1(max(-excess * log_n, -700.0)) if abs(excess) > 1e-9 else 1.0 / log_n
    log_k = (math.log(slope) + mu * math.log(2.0)) / max(s, 1e-9)
    return max(1, int(math.exp(min(log_k, math.log(len(c)) + 1.0))))


def _truncate_surprising(c: Candidates, mu: float) -> None:
    """Keep the tokens with a surprise of at most mu bits; if there are none, keep the likeliest token."""
    top = float(c.logits.max())
    total = top + math.log(float(np.exp(c.logits - c.logits.dtype.type(top)).sum(dtype=np.float64)))
    c.keep(np.flatnonzero(c.logits >= min(top, total - mu * math.log(2.0))))
