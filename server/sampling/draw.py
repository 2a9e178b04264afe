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
    k = min(params.top_k, len(row))
    if k <= 0 and params.top_p >= 1.0:
        ids = np.flatnonzero(row >= np.float32(_noise_floor(row, top, params, position)))
    else:
        ids = _near(row, top, k)
    logits = row[ids].astype(np.float64)
    floor = top + math.log(params.min_p) if params.min_p > 0.0 else -math.inf
    if k > 0 or params.top_p < 1.0:
        floor = max(floor, _nucleus_floor(np.sort(logits)[-k:], params.top_p))
    keep = logits >= floor
    return ids[keep], logits[keep]


def _noise_floor(row: Row, top: float, params: SamplingParams, position: int) -> float:
    """The logit below which no noise can lift a token over the best of the likeliest ones with theirs."""
    near = np.flatnonzero(row >= np.float32(top - params.temperature))
    scores = row[near] / params.temperature + gumbel(params.seed, position, near)
    return params.temperature * (float(scores.max()) - MAX_NOISE)


def _near(row: Row, top: float, k: int) -> Ids:
    """At least the k likeliest tokens (k = 0: all that are not negligible), in the order of their ids.
    Tries windows below the top first: a partial sort of a whole vocabulary costs more than all else here."""
    for window in (6.0, 12.0, 24.0):
        ids = np.flatnonzero(row >= np.float32(top - window))
        if 0 < k <= len(ids):
            return ids
    if k > 0:
        return np.argpartition(row, len(row) - k)[len(row) - k :] if k < len(row) else np.arange(len(row))
    return np.flatnonzero(row >= np.float32(top - NEGLIGIBLE))


def _nucleus_floor(ascending: Floats, top_p: float) -> float:
    """The smallest logit of the shortest head whose probability reaches top_p."""
    if top_p >= 1.0:
        return float(ascending[0])
    cumulative = np.cumsum(np.exp(ascending[::-1] - ascending[-1]))
    n = int(np.searchsorted(cumulative, top_p * float(cumulative[-1]))) + 1
    return float(ascending[-min(n, len(ascending))])
