"""One draw from one row of logits. Pure: the same row, parameters and position give the same token.

Works on the few tokens that can still win; no step is a Python loop over the vocabulary, and the passes over
all of it are an argmax, comparisons with a threshold and, where the row is flat, hashes without logarithms.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from server.sampling.noise import LOUD, MAX_NOISE, gumbel, loud, loud_among
from server.sampling.params import SamplingParams

Row: TypeAlias = npt.NDArray[np.float32]
Ids: TypeAlias = npt.NDArray[np.int64]
Floats: TypeAlias = npt.NDArray[np.float64]
Logits: TypeAlias = npt.NDArray[np.float32] | npt.NDArray[np.float64]

_WINDOWS = (2.0, 4.0, 7.0, 12.0, 24.0)
_MANY = 16  # times k: a window with more is made narrower
_FEW = 512  # scored without asking first which of them are loud


class Distribution(NamedTuple):
    """What can be drawn, and how likely. ids ascend; probabilities sum to 1; every other token has none."""

    ids: Ids
    probabilities: Floats

    def of(self, token: int) -> float:
        """The probability of one token."""
        at = int(np.searchsorted(self.ids, token))
        return float(self.probabilities[at]) if at < len(self.ids) and self.ids[at] == token else 0.0


def draw(row: Row, params: SamplingParams, position: int) -> int:
    """The token for `position` (index in the sequence of the token being chosen).

    row: (vocab size,) logits. Temperature 0: the largest logit, the lowest id among equals. Otherwise the
    filters, then argmax of logit / temperature + Gumbel noise, which is an exact sample of the softmax.
    """
    best = int(row.argmax())
    if params.temperature <= 0.0 or params.top_k == 1:
        return best
    top = float(row[best])
    if params.top_k <= 0:
        return _race(row, best, params, position, _floor(row, top, params))
    ids, logits = _survivors(row, top, params)
    if len(ids) == 1:
        return int(ids[0])
    scores = logits / params.temperature + gumbel(params.seed, position, ids)
    return int(ids[int(scores.argmax())])


def draw_softmax(logits: Logits, seed: int, position: int) -> int:
    """The token for `position` from the softmax of these logits; minus infinity is never drawn."""
    params = SamplingParams(1.0, 0, 1.0, 0.0, seed)
    return _race(logits, int(logits.argmax()), params, position, -math.inf)


def distribution(row: Row, params: SamplingParams) -> Distribution:
    """What `draw` draws from, before the noise."""
    best = int(row.argmax())
    if params.temperature <= 0.0 or params.top_k == 1:
        return Distribution(np.array([best], np.int64), np.ones(1))
    top = float(row[best])
    if params.top_k <= 0:
        floor = max(_floor(row, top, params), float(np.finfo(np.float32).min))
        ids = np.flatnonzero(row.astype(np.float64) >= floor)
        logits = row[ids].astype(np.float64)
    else:
        ids, logits = _survivors(row, top, params)
    return Distribution(ids, softmax(logits / params.temperature))


def softmax(logits: Floats) -> Floats:
    """At least one of them finite."""
    weights = np.exp(logits - logits.max())
    return weights / weights.sum()


def probability(row: Row, token: int) -> float:
    """The softmax probability of one token, at temperature 1 and unfiltered."""
    top = float(row.max())
    return float(np.exp(np.float64(row[token]) - top) / np.exp(row - np.float32(top)).sum())


def _race(row: Logits, best: int, params: SamplingParams, position: int, floor: float) -> int:
    """argmax of logit / temperature + noise over the tokens with logits of at least `floor`.

    Exact, though most tokens are never scored. The likeliest sets a mark. What cannot reach it with the most
    noise there is falls out. If many are left, those that are loud (one in 1024, found by hash alone) are
    scored and raise the mark; a token that is not loud must then have a logit within LOUD of it.
    """
    temperature = params.temperature
    mark = _best_score(row, np.array([best]), params, position)[0]
    able = row >= _under(max(floor, temperature * (mark - MAX_NOISE)))
    n_able = int(np.count_nonzero(able))
    if n_able <= _FEW:
        ids = np.flatnonzero(able)
    elif n_able < len(row) // 4:
        among = np.flatnonzero(able)
        ids = np.append(loud_among(params.seed, position, among), best)
        mark = max(mark, _best_score(row, ids, params, position)[0])
        near = row[among] >= _under(max(floor, temperature * (mark - LOUD - 1e-6)))
        ids = np.concatenate((ids, among[near]))
    else:
        ids = loud(params.seed, position, len(row))
        ids = np.append(ids[able[ids]], best)
        mark = max(mark, _best_score(row, ids, params, position)[0])
        near = row >= _under(max(floor, temperature * (mark - LOUD - 1e-6)))
        ids = np.concatenate((ids, np.flatnonzero(near)))
    if floor > -math.inf:
        ids = ids[row[ids].astype(np.float64) >= floor]
    return _best_score(row, ids, params, position)[1]


def _best_score(row: Logits, ids: Ids, params: SamplingParams, position: int) -> tuple[float, int]:
    """The highest score and its token, the lowest id among equals."""
    scores = row[ids].astype(np.float64) / params.temperature + gumbel(params.seed, position, ids)
    highest = scores.max()
    return float(highest), int(ids[scores == highest].min())


def _under(threshold: float) -> np.float32:
    """A float32 that is surely not above the threshold."""
    return np.nextafter(np.float32(threshold), np.float32(-np.inf))


def _min_p_floor(top: float, min_p: float) -> float:
    return top + math.log(min(min_p, 1.0)) if min_p > 0.0 else -math.inf


def _survivors(row: Row, top: float, params: SamplingParams) -> tuple[Ids, Floats]:
    """The candidates that top_k, top_p and min_p leave, with their logits. Equals at an edge all stay."""
    k = min(params.top_k, len(row))
    ids = likeliest(row, top, k)
    logits = row[ids].astype(np.float64)
    floor = nucleus_floor(np.sort(logits)[-k:], params.top_p)
    keep = logits >= max(floor, _min_p_floor(top, params.min_p))
    return ids[keep], logits[keep]


def _floor(row: Row, top: float, params: SamplingParams) -> float:
    """The smallest logit that top_p and min_p leave, without top_k. Looks for the nucleus in windows below
    the top first."""
    floor = _min_p_floor(top, params.min_p)
    if params.top_p >= 1.0:
        return floor
    mass = float(np.exp(row - np.float32(top)).sum(dtype=np.float64))
    for window in _WINDOWS:
        near = row >= np.float32(top - window)
        if np.count_nonzero(near) > _FEW:
            break
        logits = row[near].astype(np.float64)
        if float(np.exp(logits - top).sum()) >= params.top_p * mass:
            return max(floor, nucleus_floor(logits, params.top_p, mass))
    return max(floor, nucleus_floor(row.astype(np.float64), params.top_p, mass))


def likeliest(row: Logits, top: float, k: int) -> Ids:
    """At least the k likeliest tokens, in the order of their ids, and not many more. Looks for a window below
    the top that has them: a partial sort of a whole vocabulary costs more than all else here."""
    low = 0.0
    for window in _WINDOWS:
        near = row >= np.float32(top - window)
        count = int(np.count_nonzero(near))
        if count >= k:
            return np.flatnonzero(_narrowed(row, top, k, (low, window)) if count > _MANY * k else near)
        low = window
    possible = np.flatnonzero(row > -np.inf)
    if len(possible) <= k:
        return possible
    return np.sort(possible[np.argpartition(row[possible], len(possible) - k)[len(possible) - k :]])


def _narrowed(row: Logits, top: float, k: int, bounds: tuple[float, float]) -> npt.NDArray[np.bool_]:
    """What lies in a window that has at least k tokens, between one with fewer and one with many more."""
    low, high = bounds
    near = row >= np.float32(top - high)
    for _ in range(8):
        middle = (low + high) / 2
        nearer = row >= np.float32(top - middle)
        count = int(np.count_nonzero(nearer))
        if count < k:
            low = middle
            continue
        high, near = middle, nearer
        if count <= _MANY * k:
            break
    return near


def nucleus_floor(logits: Floats, top_p: float, mass: float | None = None) -> float:
    """The smallest logit of the shortest head whose probability reaches top_p. mass: the sum of
    exp(logit - largest) over all candidates, where `logits` has only the likeliest of them."""
    if top_p >= 1.0:
        return float(logits.min())
    weights = np.exp(logits - logits.max())
    return head_floor(logits, weights, top_p * (float(weights.sum()) if mass is None else mass))


def head_floor(
    values: Floats, weights: Floats, wanted: float, side: Literal["left", "right"] = "left"
) -> float:
    """The smallest value in the shortest head, largest values first, whose weight reaches `wanted`, or with
    side "right" exceeds it. Of many values only those are sorted among which it must be."""
    before = 0.0
    if len(values) > _FEW:
        bins = np.minimum((values.max() - values) * 64.0, 4_095.0).astype(np.int64)
        cumulative = np.cumsum(np.bincount(bins, weights))
        last = min(int(np.searchsorted(cumulative, wanted, side)), len(cumulative) - 1)
        before = float(cumulative[last - 1]) if last > 0 else 0.0
        inside = bins == last
        values, weights = values[inside], weights[inside]
    order = np.argsort(-values)
    n = int(np.searchsorted(before + np.cumsum(weights[order]), wanted, side))
    return float(values[order[min(n, len(order) - 1)]])
