"""One guess of a draft model, from a row of its own: what the target will draw if it has a like row. Pure.

A draft model's confidence only has to tell sure guesses from others (the gate learns how often each degree of
it comes true), so it is had without a pass over the vocabulary.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from server.sampling.draw import Distribution, Row, draw_from
from server.sampling.params import SamplingParams
from server.sampling.peaks import Peaks


class DraftToken(NamedTuple):
    """confidence: the estimated probability of the token, given all before it. runner_up: what to guess if it
    is wrong, drafted: what the token is a sample of; None where that was not wanted."""

    token: int
    confidence: float
    runner_up: int | None = None
    runner_up_confidence: float = 0.0
    drafted: Distribution | None = None


def guess(row: Row, params: SamplingParams, position: int, *, second: bool) -> DraftToken:
    """What `draw` gives, with its probability at temperature 1, and the likeliest other token: that a rival's
    noise came near says less about the target than what the draft model thinks."""
    peaks = Peaks(row)
    if not math.isfinite(peaks.top):  # a model that computes nonsense
        return DraftToken(int(row.argmax()), 0.0)
    greedy = params.temperature <= 0.0 or params.top_k == 1
    token = peaks.lowest_best() if greedy else draw_from(peaks, params, position)
    mass = peaks.mass()
    confidence = _weight(peaks, token) / mass
    if not second or len(row) < 2:
        return DraftToken(token, confidence)
    runner_up = peaks.runner_up(token)
    return DraftToken(token, confidence, runner_up, _weight(peaks, runner_up) / mass)


def _weight(peaks: Peaks, token: int) -> float:
    return math.exp(float(peaks.row[token]) - peaks.top)
