"""One guess of a draft model from its row of logits: what the target draws if it has a similar row. Pure.

The gate learns how often each confidence comes true, so that a rough one will do, without a pass over the
vocabulary.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from server.sampling.draw import Distribution, Row, draw_from
from server.sampling.params import SamplingParams
from server.sampling.peaks import Peaks


class DraftGuess(NamedTuple):
    """A token that a model guesses, and what else its row of logits says; None: not asked for."""

    token: int
    confidence: float  # estimated probability of the token, given all before it
    second: int | None = None  # guess for the case that it is wrong
    second_confidence: float = 0.0
    drawn: int | None = None  # what the rule 'drawn' of drafting/guessing.py guesses
    likeliest: int | None = None  # what the rule 'likeliest' guesses
    drafted: Distribution | None = None  # what the token is a sample of
    third: int | None = None
    third_confidence: float = 0.0

    @property
    def others(self) -> list[tuple[int, float]]:
        """The second and the third guess with their confidences, if they are known."""
        both = (self.second, self.second_confidence), (self.third, self.third_confidence)
        return [(token, confidence) for token, confidence in both if token is not None]


def guess(row: Row, params: SamplingParams, position: int, *, second: bool) -> DraftGuess:
    """Return the result of draw() and its probability at temperature 1.

    With `second` the likeliest other token is added, a better guess than that with the next highest noise.
    """
    peaks = Peaks(row)
    if not math.isfinite(peaks.top):  # a model that computes nonsense
        return DraftGuess(int(row.argmax()), 0.0)
    greedy = params.temperature <= 0.0 or params.top_k == 1
    token = peaks.lowest_best() if greedy else draw_from(peaks, params, position)
    mass = peaks.mass()
    confidence = (1.0 if greedy else _weight(peaks, token)) / mass
    if not second or len(row) < 2:
        return DraftGuess(token, confidence)
    runner_up = peaks.runner_up(token)
    return DraftGuess(token, confidence, runner_up, _weight(peaks, runner_up) / mass)


def _weight(peaks: Peaks, token: int) -> float:
    return math.exp(float(peaks.row[token]) - peaks.top)
