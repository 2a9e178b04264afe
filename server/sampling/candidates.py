"""Candidates of one draw, and the filters that drop some of them.

Each filter keeps the same tokens as llama.cpp's (src/llama-sampler.cpp), with two exceptions: tokens with
logit minus infinity are no candidates, and ties at the edge of top_k, typ_p or top_p are all kept. Filters
that are switched off are not called, see SamplingParams.steps().
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from server.sampling.draw import Distribution, Ids, Logits, draw_softmax, head_floor, nucleus_floor, softmax
from server.sampling.noise import gumbel
from server.sampling.peaks import Peaks

TINY = 1e-6  # temperature: a smaller one counts as 0, since logits divided by it may be infinite
_MAX_CANDIDATES_KEPT = 4_096  # with more candidates, drawing from a whole row is faster


class Candidates:
    """The tokens (at least one) that can still be drawn, and their logits. Never writes to the given row."""

    def __init__(self, row: npt.NDArray[np.float32]):
        self.ids: Ids | None = None  # ascending token ids; None: all tokens
        self.logits: Logits = row
        self._n_vocab = len(row)

    def __len__(self) -> int:
        return len(self.logits)

    def drop_impossible(self) -> None:
        """Drop tokens whose logit is minus infinity; at least one logit must be finite.

        Call it before the filters, which need finite logits.
        """
        possible = self.logits > -np.inf
        if not possible.all():
            self.keep(np.flatnonzero(possible))

    def keep(self, at: Ids) -> None:
        """Keep only the candidates at these ascending indices."""
        self.ids = at if self.ids is None else self.ids[at]
        self.logits = self.logits[at].astype(np.float64)

    def find(self, tokens: Ids) -> tuple[Ids, npt.NDArray[np.bool_]]:
        """Look for `tokens` among the candidates.

        Returns:
            The indices of the candidates found, in the order of `tokens`; and a bool for each of `tokens`,
            True if it is a candidate.
        """
        if self.ids is None:
            return tokens, np.ones(len(tokens), np.bool_)
        at = np.minimum(np.searchsorted(self.ids, tokens), len(self.ids) - 1)
        found = self.ids[at] == tokens
        return at[found], found

    def replace(self, at: Ids, values: npt.NDArray[np.floating]) -> None:
        """Set the logits at these indices to `values`."""
        self.logits = self.logits.copy()
        self.logits[at] = values

    def token(self, at: int) -> int:
        """Return the id of the candidate at this index."""
        return at if self.ids is None else int(self.ids[at])

    def distribution(self) -> Distribution:
        """Return the softmax of the candidates."""
        ids = np.arange(len(self)) if self.ids is None else self.ids
        return Distribution(ids, softmax(self.logits.astype(np.float64)))

    def choose(self, seed: int, position: int) -> int:
        """Draw from the softmax of the logits, with the noise of `seed` and `position`; return an index."""
        if self.ids is None:
            return draw_softmax(self.logits, seed, position)
        if len(self) > _MAX_CANDIDATES_KEPT:
            row = np.full(self._n_vocab, -np.inf)
            row[self.ids] = self.logits
            return int(np.searchsorted(self.ids, draw_softmax(row, seed, position)))
        return int((self.logits + gumbel(seed, position, self.ids)).argmax())


def top_k(c: Candidates, k: int) -> None:
    """Keep the k likeliest candidates."""
    if k == 1:
        c.keep(_best_index(c))
    elif 0 < k < len(c):
        near = Peaks(c.logits).likeliest(k)
        logits = c.logits[near]
        c.keep(near[logits >= np.partition(logits, len(near) - k)[len(near) - k]])


def top_p(c: Candidates, p: float) -> None:
    """Keep the likeliest candidates: as few as together have a probability of at least p."""
    logits = c.logits.astype(np.float64)
    c.keep(np.flatnonzero(logits >= nucleus_floor(logits, p)))


def min_p(c: Candidates, p: float) -> None:
    """Keep the candidates that are at least p times as likely as the likeliest one."""
    c.keep(np.flatnonzero(c.logits >= float(c.logits.max()) + math.log(min(p, 1.0))))


def top_n_sigma(c: Candidates, n: float) -> None:
    """Keep the candidates with logits within n standard deviations of the largest (arXiv:2411.07641)."""
    if n > 0.0 and len(c) > 1:
        deviation = float(c.logits.std(dtype=np.float64))
        c.keep(np.flatnonzero(c.logits >= float(c.logits.max()) - n * deviation))


def typical_p(c: Candidates, p: float) -> None:
    """Keep the candidates with a surprise near the entropy: as few as together have a probability above p.

    This is locally typical sampling (arXiv:2202.00666).
    """
    logits = c.logits.astype(np.float64)
    probabilities = softmax(logits)
    surprise = float(logits.max()) - math.log(float(probabilities.max())) - logits
    typicality = -np.abs(surprise - float(probabilities @ surprise))
    c.keep(np.flatnonzero(typicality >= head_floor(typicality, probabilities, p, "right")))


def xtc(c: Candidates, threshold: float) -> None:
    """Drop each candidate with a probability of at least `threshold`, except the least likely one of these.

    On a tie, the last one is kept. The caller decides by chance whether to call this.
    """
    likely = np.flatnonzero(softmax(c.logits.astype(np.float64)) >= threshold)
    if len(likely) > 1:
        spared = len(likely) - 1 - int(c.logits[likely][::-1].argmin())
        c.keep(np.delete(np.arange(len(c)), np.delete(likely, spared)))


def temperature(c: Candidates, value: float, spread: float, exponent: float) -> None:
    """Divide the logits by the temperature. If it is below TINY, keep only the likeliest candidate instead.

    Args:
        c: Changed in place.
        value: The temperature.
        spread: If above 0, the temperature grows with the entropy, from value - spread to value + spread.
        exponent: The temperature grows with this power of entropy / largest possible entropy.
    """
    if spread > 0.0:
        if len(c) < 2:
            return
        probabilities = softmax(c.logits.astype(np.float64))
        seen = probabilities[probabilities > 0.0]
        share = max(0.0, -float(seen @ np.log(seen)) / math.log(len(c)))
        low, high = max(0.0, value - spread), value + spread
        value = low + (high - low) * share**exponent
    if value < TINY:
        c.keep(_best_index(c))
    elif value != 1.0:
        c.logits = c.logits.astype(np.float64) / value


def _best_index(c: Candidates) -> Ids:
    return np.array([c.logits.argmax()], np.int64)
