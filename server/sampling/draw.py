"""One draw from one row of logits. Pure: the same row, parameters and position give the same token.

Works on the few tokens that can still win; no step is a Python loop over the vocabulary, and the only passes
over all of it are an argmax and comparisons with a threshold.
"""

from __future__ import annotations

import math
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from server.sampling.noise import MAX_NOISE, gumbel
from server.sampling.params import SamplingParams

Row: TypeAlias = npt.NDArray[np.float32]
Ids: TypeAlias = npt.NDArray[np.int64]
Floats: TypeAlias = npt.NDArray[np.float64]

NEGLIGIBLE = 40.0
"""Logits this far below the largest are never drawn: together they weigh less than 1e-12."""


def draw(row: Row, params: SamplingParams, position: int) -> int:
    """The token for `position` (index in the sequence of the token being chosen).

    row: (vocab size,) logits. Temperature 0: the largest logit, the lowest id among equals. Otherwise the
    filters, then argmax of logit / temperature + Gumbel noise, which is an exact sample of the softmax.
    """
    best = int(row.argmax())
    if params.temperature <= 0.0 or params.top_k == 1:
        return best
    ids, logits = _filtered(row, float(row[best]), params, position)
    if len(ids) == 1:
        return int(ids[0])
    scores = logits / params.temperature + gumbel(params.seed, position, ids)
    return int(ids[int(scores.argmax())])


def probability(row: Row, token: int) -> float:
    """The softmax probability of one token, at temperature 1 and unfiltered."""
    top = float(row.max())
    return float(np.exp(np.float64(row[token]) - top) / np.exp(row - np.float32(top)).sum())


def _filtered(row: Row, top: float, params: SamplingParams, position: int) -> tuple[Ids, Floats]:
    """The candidates that survive every filter and can still win the draw, with their logits."""
    floor = max(_noise_floor(row, top, params, position), top - NEGLIGIBLE)
    if params.min_p > 0.0:
        floor = max(floor, top + math.log(params.min_p))
    if params.top_k > 0 or params.top_p < 1.0:
        floor = max(floor, _nucleus_floor(_largest(row, top, params.top_k), params.top_p))
    ids = np.flatnonzero(row >= np.float32(floor))
    return ids, row[ids].astype(np.float64)


def _noise_floor(row: Row, top: float, params: SamplingParams, position: int) -> float:
    """The logit below which no noise can lift a token over the best of the likeliest ones with theirs."""
    near = np.flatnonzero(row >= np.float32(top - params.temperature))
    scores = row[near] / params.temperature + gumbel(params.seed, position, near)
    return params.temperature * (float(scores.max()) - MAX_NOISE)


def _largest(row: Row, top: float, k: int) -> Row:
    """The k largest logits (all that matter for k = 0), ascending. Looks at a window below the top first:
    a partial sort of a whole vocabulary costs more than everything else here."""
    for window in (6.0, 12.0, 24.0):
        near = row[row >= np.float32(top - window)]
        if 0 < k <= len(near):
            return np.sort(near)[-k:]
    rest = np.sort(row[row >= np.float32(top - NEGLIGIBLE)])
    return rest[-k:] if k else rest


def _nucleus_floor(ascending: Row, top_p: float) -> float:
    """The smallest logit of the shortest head whose probability reaches top_p."""
    if top_p >= 1.0:
        return float(ascending[0])
    weights = np.exp(ascending[::-1].astype(np.float64) - float(ascending[-1]))
    cumulative = np.cumsum(weights)
    n = int(np.searchsorted(cumulative, top_p * cumulative[-1])) + 1
    return float(ascending[-min(n, len(ascending))])
