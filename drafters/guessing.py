"""A guess from a row of logits, a second guess for the case that it is wrong, and which rule of guessing is
right more often where the lead samples: the shared noise's or the likeliest token. Pure."""

from __future__ import annotations

import math

import numpy as np

from server.estimators import Smoothed
from server.sampling.draft_token import DraftGuess
from server.sampling.draw import Row, draw_from
from server.sampling.noise import Ids, gumbel
from server.sampling.params import SamplingParams
from server.sampling.peaks import Peaks

SURE = 0.95  # a guess this likely needs no second one. 0.9: of those between, 5 to 10% fail without one
# Of a position where the rules differ. Simulated: equals change twice in 1,000 such positions, and one that
# is right in 40 percent of them, not 20, is found after 32. Twice: 9 changes, 13 positions; half: 0.6 and 64.
RULE_WEIGHT = 1 / 64
# Share of such positions by which the other must be better. Half: 7 changes, 13 positions; twice: 0.2 and 98.
RULE_MARGIN = 0.1
_FEW = 2048  # tokens whose noise is looked at: 34 us of 500 for a flat row. Half: 21 us; twice: 60
# How far below the largest logit: at temperature 1 a token there is 6e-6 times as likely. Half: 2e-3,
# so that tokens that may be drawn are overlooked; twice: more noise to compute.
_WIDEST, _NARROWER = 12.0, (9.0, 6.0, 3.0, 1.0)
_SHORT = 8192  # logits whose sum of exponentials costs no more than an estimate: 7 us. Twice: 14 against 8


def guess(row: Row, sampling: SamplingParams, position: int, *, likeliest: bool, second: bool) -> DraftGuess:
    """What the lead will choose for `position`, by a row (vocab size,) of the drafter's own logits: the draw
    with the shared noise, or the `likeliest` token. second: with a second guess where the first is unsure."""
    peaks = Peaks(row)
    if not math.isfinite(peaks.top):  # a model that computes nonsense
        return DraftGuess(int(row.argmax()), 0.0)
    top = peaks.lowest_best()
    if sampling.temperature <= 0.0 or sampling.top_k == 1:
        return _greedy(peaks, top, second)
    drawn = draw_from(peaks, sampling, position)
    noisy = None if likeliest else _NoisyScores(peaks, sampling, position, drawn)
    token, confidence = (drawn, noisy.share(drawn)) if noisy else (top, 1.0 / _mass(peaks))
    if not second or not confidence < SURE:
        return DraftGuess(token, confidence, None, 0.0, drawn, top)
    noisy = noisy or _NoisyScores(peaks, sampling, position, drawn)
    if drawn == token:
        return DraftGuess(token, confidence, *noisy.best_but(token, 1.0 - confidence), drawn, top)
    return DraftGuess(token, confidence, drawn, min(1.0 - confidence, noisy.share(drawn)), drawn, top)


def _greedy(peaks: Peaks, top: int, second: bool) -> DraftGuess:
    confidence = 1.0 / _mass(peaks)
    if not second or not confidence < SURE or len(peaks.row) < 2:
        return DraftGuess(top, confidence, None, 0.0, top, top)
    runner_up = peaks.runner_up(top)
    share = confidence * math.exp(float(peaks.row[runner_up]) - peaks.top)
    return DraftGuess(top, confidence, runner_up, share, top, top)


def _mass(peaks: Peaks) -> float:
    """The sum of exp(logit - top); approximate for a long row, at a fraction of the cost."""
    if len(peaks.row) > _SHORT:
        return peaks.mass()
    return float(np.exp(peaks.row - np.float32(peaks.top)).sum())


class _NoisyScores:
    """Tokens that may win the noisy draw, with their scores: logit / temperature + noise.

    A token's share in the softmax of these scores tells better than its probability how surely another model
    with this noise draws it: log loss 0.53 against 0.81 with the bundled pair at temperature 1.
    """

    def __init__(self, peaks: Peaks, sampling: SamplingParams, position: int, drawn: int) -> None:
        row = peaks.row
        self._ids = _near(peaks, drawn)
        self._logits = row.take(self._ids).astype(np.float64)
        scores = self._logits / sampling.temperature
        scores += gumbel(sampling.seed, position, self._ids, len(row))
        scores -= scores.max()
        self._weights = np.exp(scores)
        self._sum = float(self._weights.sum())
        self._floor = peaks.top + math.log(sampling.min_p) if sampling.min_p > 0.0 else -math.inf

    def share(self, token: int) -> float:
        """Of a token that was drawn."""
        return float(self._weights[self._ids.searchsorted(token)]) / self._sum

    def best_but(self, token: int, most: float) -> tuple[int | None, float]:
        """The token with the highest score but this one (one that min_p leaves, if any), and its share, at
        most `most`."""
        others = self._ids != token
        able = others & (self._logits >= self._floor)
        able = able if able.any() else others
        if not able.any():
            return None, 0.0
        at = int(np.where(able, self._weights, -1.0).argmax())
        return int(self._ids[at]), min(most, float(self._weights[at]) / self._sum)


def _near(peaks: Peaks, drawn: int) -> Ids:
    """Ids of the likeliest tokens, _FEW at most, and the drawn one; ascending."""
    ids = peaks.above(peaks.top - _WIDEST)
    for window in _NARROWER:
        if len(ids) <= _FEW:
            break
        ids = peaks.above(peaks.top - window)
    ids = ids[:_FEW]
    at = int(ids.searchsorted(drawn))
    return ids if at < len(ids) and ids[at] == drawn else np.insert(ids, at, drawn)


class Rule:
    """Learns which guess is right more often. Begins with the shared noise, which is better where
    distributions are flat and alike."""

    def __init__(self) -> None:
        self.likeliest = False  # guess the likeliest token
        self.n_judged = 0
        self._advantage = Smoothed(RULE_WEIGHT, 0.0)  # of the noise

    def judge(self, guess: DraftGuess, token: int) -> None:
        """`token` was committed in the place of this guess."""
        drawn, likeliest = token == guess.drawn, token == guess.likeliest
        self.n_judged += 1
        if guess.drawn == guess.likeliest:
            return
        self._advantage.observe(drawn - likeliest)
        if abs(self._advantage.value) > RULE_MARGIN:
            self.likeliest = self._advantage.value < 0.0
