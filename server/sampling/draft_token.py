"""Guess the token that the target will draw, from a draft model's row of logits. Pure.

Confidences are estimates, made without another pass over the vocabulary. The lead learns how often guesses of
each confidence are accepted (hits.py).
"""

from __future__ import annotations

import math
from typing import NamedTuple

from server.sampling.draw import Distribution, Row, draw_from
from server.sampling.params import SamplingParams
from server.sampling.peaks import Peaks


class DraftGuess(NamedTuple):
    """A guessed token, its confidence, and optional values from the same row of logits.

    Optional values that were not requested are None or 0.
    """

    token: int
    confidence: float  # estimated probability of the token, given all before it
    second: int | None = None  # guess in case the token is wrong
    second_confidence: float = 0.0
    drawn: int | None = None  # token drawn with the shared noise (guessing.py)
    likeliest: int | None = None  # likeliest token
    drafted: Distribution | None = None  # distribution that the token was sampled from
    third: int | None = None
    third_confidence: float = 0.0

    @property
    def others(self) -> list[tuple[int, float]]:
        """Return the second and third guess with their confidences, where known."""
        both = (self.second, self.second_confidence), (self.third, self.third_confidence)
        return [(token, confidence) for token, confidence in both if token is not None]


def guess(row: Row, params: SamplingParams, position: int, *, second: bool) -> DraftGuess:
    """Guess the token that draw() returns for this row. The confidence is its probability at temperature 1.

    Args:
        row: Logits, (vocab size,).
        params: The request's filters, temperature and seed.
        position: Index of the guessed token in the sequence.
        second: True: also guess the likeliest other token, which is right more often than the token with the
            second best score of the draw.
    """
    peaks = Peaks(row)
    if not math.isfinite(peaks.top):  # a model that computes nonsense
        return DraftGuess(int(row.argmax()), 0.0)
    greedy = params.temperature <= 0.0 or params.top_k == 1
    token = peaks.lowest_best() if greedy else draw_from(peaks, params, position)
    mass = peaks.mass()
    confidence = (1.0 if greedy else _token_weight(peaks, token)) / mass
    if not second or len(row) < 2:
        return DraftGuess(token, confidence)
    runner_up = peaks.runner_up(token)
    return DraftGuess(token, confidence, runner_up, _token_weight(peaks, runner_up) / mass)


def _token_weight(peaks: Peaks, token: int) -> float:
    return math.exp(float(peaks.row[token]) - peaks.top)
