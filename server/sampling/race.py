"""The winner of a draw: the token with the largest logit / temperature + noise. Pure.

Exact, though few tokens are scored. The best score of loud tokens and the likeliest one is the mark; a token
that is not loud can only win with a logit within LOUD of it.
"""

from __future__ import annotations

import math
from typing import TypeAlias

import numpy as np

from server.sampling.noise import LOUD, Floats, Ids, loud, quiet
from server.sampling.peaks import Logits, Peaks

_Scored: TypeAlias = tuple[float, int]  # a score, and minus the id: of equals the lower id is larger

_ROUNDING = 1e-6  # bound of a score's rounding error


def race(peaks: Peaks, temperature: float, seed: int, position: int, floor: float) -> int:
    """The token with the highest score among all with logits of at least `floor`, the lowest id among
    equals."""
    row, best = peaks.row, peaks.best()
    mark = peaks.top / temperature + float(quiet(seed, position, np.array([best]))[0])
    scored = _highest(row, *loud(seed, position, len(row)), temperature, floor)
    mark = max(mark, scored[0][0]) if scored else mark
    ids = peaks.above(max(floor, temperature * (mark - LOUD - _ROUNDING)))
    scored += _highest(row, ids, quiet(seed, position, ids), temperature, floor)
    return -max(scored)[1] if scored else best  # none where logits are no numbers


def _highest(row: Logits, ids: Ids, noise: Floats, temperature: float, floor: float) -> list[_Scored]:
    """The one of these tokens, noise[i] that of ids[i], with the highest score, if any reaches the floor."""
    if not len(ids):
        return []
    logits = row.take(ids).astype(np.float64)
    scores = logits / temperature + noise
    scores[logits < floor] = -math.inf
    at = int(scores.argmax())
    return [(float(scores[at]), -int(ids[at]))] if scores[at] > -math.inf else []
