"""Find the winner of a draw: the token with the largest logit / temperature + noise. Pure.

The result is exact, although few tokens are scored. Upper-tail tokens (noise.py) and the likeliest token are
scored first; their best score is the threshold. Any other token can win only if its logit / temperature is
within TAIL_MIN of the threshold. If such tokens are few, Python scores them faster than numpy; the scores are
equal except for rounding.
"""

from __future__ import annotations

import math
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from server.sampling.noise import TAIL_MIN, lower_noise, lower_noise_few, upper_tail
from server.sampling.peaks import Logits, Peaks

Floats = npt.NDArray[np.float64]

_Scored: TypeAlias = tuple[float, int]  # (score, minus the id): on a tie, the lower id is larger

_SCORE_ERROR = 1e-6  # bound of a score's rounding error
_QUICK_IN_PYTHON = 16  # maximum tokens for which Python is faster than numpy


def race(peaks: Peaks, temperature: float, seed: int, position: int, floor: float) -> int:
    """Return the token with the highest score; on a tie, the lowest id.

    The score is logit / temperature + noise. The noise depends on `seed`, `position` and the token. Only
    tokens with logits of at least `floor` count.
    """
    row, best = peaks.row, peaks.best()
    threshold = peaks.top / temperature + lower_noise_few(seed, position, (best,))[0]
    scored = _loudest_token(row, temperature, seed, position, floor)
    threshold = max(threshold, scored[0][0]) if scored else threshold
    ids = peaks.above(max(floor, temperature * (threshold - TAIL_MIN - _SCORE_ERROR)))
    if len(ids) > _QUICK_IN_PYTHON:
        scores = _noisy_scores(row.take(ids), temperature, lower_noise(seed, position, ids), floor)
        at = int(scores.argmax())
        scored.append((float(scores[at]), -int(ids[at])))
    else:
        tokens, logits = ids.tolist(), row.take(ids).tolist()
        for token, logit, noise in zip(tokens, logits, lower_noise_few(seed, position, tokens), strict=True):
            if logit >= floor:
                scored.append((logit / temperature + noise, -token))
    return -max(scored)[1] if scored else best  # none where logits are no numbers


def _loudest_token(row: Logits, temperature: float, seed: int, position: int, floor: float) -> list[_Scored]:
    """Return [(score, -id)] of the upper-tail token with the highest score; [] if none reaches `floor`."""
    ids, noise = upper_tail(seed, position, len(row))
    if not len(ids):
        return []
    scores = _noisy_scores(row.take(ids), temperature, noise, floor)
    at = int(scores.argmax())
    score = float(scores[at])
    return [(score, -int(ids[at]))] if score > -math.inf else []


def _noisy_scores(logits: Logits, temperature: float, noise: Floats, floor: float) -> Floats:
    """Return logit / temperature + noise of each token; minus infinity for logits below the floor."""
    scaled = logits if temperature == 1.0 else np.divide(logits, temperature, dtype=np.float64)
    scores: Floats = scaled + noise
    if floor > -math.inf:
        scores[logits.astype(np.float64) < floor] = -math.inf
    return scores
