"""Draw one token from one row of logits. Pure: the same row, parameters and position give the same token.

Only the few tokens that can win are scored. One pass over the vocabulary finds the row's peaks (peaks.py). At
most one more pass finds other tokens with large logits. No Python loop runs over the vocabulary.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from server.sampling.noise import gumbel
from server.sampling.params import SamplingParams
from server.sampling.peaks import Ids, Logits, Peaks
from server.sampling.race import Floats, race

Row: TypeAlias = npt.NDArray[np.float32]

_WINDOWS = (2.0, 4.0, 7.0, 12.0, 24.0)  # distances in logits from the top within which the nucleus is sought
_FEW_LOGITS = 8  # number of the largest logits, which often determine what the filters leave
_SUM_ERROR = 1e-9  # bound of the rounding error of sums of weights
_SORTED_WHOLE = 512  # maximum logits that are all sorted; of more, only those near the edge are sorted


class Distribution(NamedTuple):
    """Probabilities of tokens: ids ascend, probabilities sum to 1, all other tokens have 0."""

    ids: Ids
    probabilities: Floats

    def of(self, token: int) -> float:
        """Return the probability of one token."""
        at = int(np.searchsorted(self.ids, token))
        return float(self.probabilities[at]) if at < len(self.ids) and self.ids[at] == token else 0.0


def draw(row: Row, params: SamplingParams, position: int) -> int:
    """Return the token that is drawn for the index `position` of the sequence.

    At temperature 0 this is the token with the largest logit (on a tie, the lowest id). Otherwise it is the
    argmax of logit / temperature + Gumbel noise over the filtered tokens: an exact sample of the softmax.

    Args:
        row: Logits, (vocab size,).
        params: The filters, the temperature and the seed.
        position: Index of the drawn token in the sequence. The noise depends on seed and position.
    """
    if params.temperature <= 0.0 or params.top_k == 1:
        return int(row.argmax())
    return draw_from(Peaks(row), params, position)


def draw_from(peaks: Peaks, params: SamplingParams, position: int) -> int:
    """Return what draw() returns for the row of these peaks. The temperature must be above 0."""
    temperature, seed = params.temperature, params.seed
    if params.top_k <= 0:
        return race(peaks, temperature, seed, position, _nucleus_edge(peaks, params))
    ids, logits = _filtered_tokens(peaks, params)
    if len(ids) == 1:
        return int(ids[0])
    scores = logits / temperature + gumbel(seed, position, ids, len(peaks.row))
    return int(ids[scores.argmax()])


def draw_softmax(logits: Logits, seed: int, position: int) -> int:
    """Draw a token from the softmax of the logits, with the noise of `seed` and `position`.

    Tokens with a logit of minus infinity are never drawn.
    """
    return race(Peaks(logits), 1.0, seed, position, -math.inf)


def distribution(row: Row, params: SamplingParams) -> Distribution:
    """Return the distribution from which draw() draws a token."""
    if params.temperature <= 0.0 or params.top_k == 1:
        return Distribution(np.array([row.argmax()], np.int64), np.ones(1))
    peaks = Peaks(row)
    if params.top_k <= 0:
        floor = max(_nucleus_edge(peaks, params), float(np.finfo(np.float32).min))
        ids = np.flatnonzero(row.astype(np.float64) >= floor)
        logits = row[ids].astype(np.float64)
    else:
        ids, logits = _filtered_tokens(peaks, params)
    return Distribution(ids, softmax(logits / params.temperature))


def softmax(logits: Floats) -> Floats:
    """Return the softmax of logits, at least one of which is finite."""
    weights = np.exp(logits - logits.max())
    return weights / weights.sum()


def _min_p_floor(top: float, min_p: float) -> float:
    return top + math.log(min(min_p, 1.0)) if min_p > 0.0 else -math.inf


def _filtered_tokens(peaks: Peaks, params: SamplingParams) -> tuple[Ids, Floats]:
    """Return the ids of the tokens that top_k, top_p and min_p keep, and their logits.

    Tokens with the same logit as the least likely kept token are kept too.
    """
    floor = _min_p_floor(peaks.top, params.min_p)
    near = peaks.few_above(floor, min(_FEW_LOGITS, params.top_k)) if floor > -math.inf else None
    if near is not None:
        logits = peaks.row.take(near).astype(np.float64)
        edge = _sure_edge(sorted(logits.tolist(), reverse=True), floor, params)
        if edge is not None:
            return _at_least(near, logits, edge)
    ids = peaks.likeliest(params.top_k)
    logits = peaks.row.take(ids).astype(np.float64)
    return _at_least(ids, logits, max(floor, _sorted_floor(np.sort(logits)[-params.top_k :], params.top_p)))


def _at_least(ids: Ids, logits: Floats, floor: float) -> tuple[Ids, Floats]:
    """Return (ids, logits) of the tokens whose logits are at least `floor`."""
    (kept,) = (logits >= floor).nonzero()
    return (ids, logits) if len(kept) == len(ids) else (ids.take(kept), logits.take(kept))


def _sure_edge(near: list[float], floor: float, params: SamplingParams) -> float | None:
    """Return the smallest logit that top_k, top_p and min_p keep; None if `near` does not determine it.

    Tokens of the top_k that are not in `near` have unknown weights, between 0 and min_p each.

    Args:
        near: The largest logits, descending, including all that min_p keeps.
        floor: The smallest logit that min_p keeps.
        params: The filters.
    """
    near = [logit for logit in near if logit >= floor]
    if not 0 < len(near) <= params.top_k:
        return None
    weights = [math.exp(logit - near[0]) for logit in near]
    least = sum(weights)
    most = least + (params.top_k - len(near)) * params.min_p
    before, edge = 0.0, near[0]
    for logit, weight in zip(near, weights, strict=True):
        if before >= params.top_p * most + _SUM_ERROR:
            return edge
        if before > 0.0 and before >= params.top_p * least - _SUM_ERROR:
            return None
        before, edge = before + weight, logit
    return edge


def _sorted_floor(ascending: Floats, top_p: float) -> float:
    """Return what nucleus_floor() returns, for logits in ascending order; faster if they are few."""
    if top_p >= 1.0 or len(ascending) > _SORTED_WHOLE:
        return nucleus_floor(ascending, top_p)
    weights = np.exp(ascending - ascending[-1])
    n = int(weights[::-1].cumsum().searchsorted(top_p * float(weights.sum())))
    return float(ascending[-1 - min(n, len(ascending) - 1)])


def _nucleus_edge(peaks: Peaks, params: SamplingParams) -> float:
    """Return a threshold: top_p and min_p keep exactly the logits that are not below it. Ignores top_k."""
    row, top = peaks.row, peaks.top
    floor = _min_p_floor(top, params.min_p)
    if params.top_p >= 1.0:
        return floor
    mass = float(np.exp(row - np.float32(top)).sum(dtype=np.float64))
    for window in _WINDOWS:
        logits = row[peaks.above(top - window)].astype(np.float64)
        if len(logits) > _SORTED_WHOLE:
            break
        if float(np.exp(logits - top).sum()) >= params.top_p * mass:
            return max(floor, nucleus_floor(logits, params.top_p, mass))
    return max(floor, nucleus_floor(row.astype(np.float64), params.top_p, mass))


def nucleus_floor(logits: Floats, top_p: float, mass: float | None = None) -> float:
    """Return the smallest logit of the nucleus: the fewest likeliest tokens that together reach top_p.

    Args:
        logits: Logits of all candidates, or of the likeliest.
        top_p: A probability.
        mass: The sum of exp(logit - largest) over all candidates; needed if `logits` lacks some of them.
    """
    if top_p >= 1.0:
        return float(logits.min())
    weights = np.exp(logits - logits.max())
    return head_floor(logits, weights, top_p * (float(weights.sum()) if mass is None else mass))


def head_floor(
    values: Floats, weights: Floats, wanted: float, side: Literal["left", "right"] = "left"
) -> float:
    """Take values, largest first, until their weights sum to `wanted`; return the last value taken.

    Of many values, only those near the result are sorted.

    Args:
        values: The values, in any order.
        weights: The weight of each value.
        wanted: The sum of weights.
        side: "left": stop at a sum of at least `wanted`; "right": stop at a sum above `wanted`.
    """
    before = 0.0
    if len(values) > _SORTED_WHOLE:
        bins = np.minimum((values.max() - values) * 64.0, 4_095.0).astype(np.int64)
        cumulative = np.cumsum(np.bincount(bins, weights))
        last = min(int(np.searchsorted(cumulative, wanted, side)), len(cumulative) - 1)
        before = float(cumulative[last - 1]) if last > 0 else 0.0
        inside = bins == last
        values, weights = values[inside], weights[inside]
    order = np.argsort(-values)
    n = int(np.searchsorted(before + np.cumsum(weights[order]), wanted, side))
    return float(values[order[min(n, len(order) - 1)]])
