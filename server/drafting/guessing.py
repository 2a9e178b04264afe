"""Make a guess from a row of logits, and alternatives in case it is wrong. Pure.

If the lead samples, a guess follows one of two rules: the draw with the shared noise, or the likeliest token.
Rule learns which of them is right more often.
"""

from __future__ import annotations

import math

import numpy as np

from server.estimators import Smoothed
from server.sampling.draft_token import DraftGuess
from server.sampling.draw import Row, draw_from
from server.sampling.noise import Ids, gumbel
from server.sampling.params import SamplingParams
from server.sampling.peaks import Peaks

# A guess with at least this confidence gets no second candidate. At 0.95, 13 of 69 wrong guesses of the
# bundled pair would lack one. At 0.998, with twice the sequences for branches: 1 percent more tokens a step
# (benchmarks.clocked, r = 16).
CERTAIN_CONFIDENCE = 0.98
# Weight of one position at which the two rules guess different tokens. Simulated: equally good rules
# alternate twice in 1,000 such positions; a rule that is right in 40 percent of them, against 20, is chosen
# after 32. Twice: 9 changes, chosen after 13; half: 0.6 changes, after 64.
RULE_WEIGHT = 1 / 64
# Minimum advantage of the other rule, as a share of the positions where they differ. Half: in RULE_WEIGHT's
# simulation 7 changes, chosen after 13; twice: 0.2 changes, after 98.
RULE_MARGIN = 0.1
_MAX_CANDIDATES = 2048  # tokens whose noise is computed: 34 us of a flat row's 500. Half: 21 us; twice: 60
# Maximum distance in logits from the largest at which a token may be drawn: at temperature 1 such a token is
# 6e-6 times as likely. Half: 2e-3, so that possible tokens are missed; twice: more noise to compute.
_WIDEST_GAP, _NARROWER_GAPS = 12.0, (9.0, 6.0, 3.0, 1.0)
# Maximum logits of a row for which the exact sum of exponentials is as quick as an estimate: 7 us. Twice: 14
# us against 8.
_QUICK_ROW = 8192


class NextToken:
    """A guess of the token that the lead chooses at `position`, from a draft model's logits, (vocab size,).

    The guess is the draw with the shared noise or, if `likeliest`, the likeliest token. Its `token` is known
    at once, so that the model can continue. guess() computes the confidence and alternatives later; until
    then, the row of logits must not change.
    """

    __slots__ = ("_drawn", "_likeliest", "_peaks", "_position", "_sampling", "_top", "token")

    def __init__(self, row: Row, sampling: SamplingParams, position: int, *, likeliest: bool) -> None:
        self._peaks = peaks = Peaks(row)
        self._sampling, self._position, self._likeliest = sampling, position, likeliest
        self._drawn: int | None = None
        if not self.is_sound:
            self.token = self._top = int(row.argmax())
            return
        self.token = self._top = peaks.lowest_best()
        if sampling.temperature > 0.0 and sampling.top_k != 1:
            self._drawn = draw_from(peaks, sampling, position)
            self.token = self._top if likeliest else self._drawn

    @property
    def is_sound(self) -> bool:
        """Return True if the largest logit of the row is finite."""
        return math.isfinite(self._peaks.top)

    def guess(self, *, second: bool) -> DraftGuess:
        """Return the guess with its confidence and, if `second` and it is not certain, alternatives."""
        peaks, drawn, top = self._peaks, self._drawn, self._top
        if not self.is_sound:
            return DraftGuess(top, 0.0)
        if drawn is None:
            return _greedy_guess(peaks, top, second)
        noisy = None if self._likeliest else _NoisyScores(peaks, self._sampling, self._position, drawn)
        confidence = noisy.share(drawn) if noisy else 1.0 / _row_mass(peaks)
        guess = DraftGuess(self.token, confidence, None, 0.0, drawn, top)
        if not second or not confidence < CERTAIN_CONFIDENCE:
            return guess
        noisy = noisy or _NoisyScores(peaks, self._sampling, self._position, drawn)
        others = noisy.best_but({self.token, drawn})
        if drawn != self.token:
            others.insert(0, (drawn, noisy.share(drawn)))
        return _with_others(guess, others)


def _greedy_guess(peaks: Peaks, top: int, second: bool) -> DraftGuess:
    confidence = 1.0 / _row_mass(peaks)
    guess = DraftGuess(top, confidence, None, 0.0, top, top)
    if not second or not confidence < CERTAIN_CONFIDENCE or len(peaks.row) < 2:
        return guess
    others = peaks.runners_up(top, min(2, len(peaks.maxima) - 1))
    return _with_others(
        guess, [(id, confidence * math.exp(float(peaks.row[id]) - peaks.top)) for id in others]
    )


def _with_others(guess: DraftGuess, others: list[tuple[int, float]]) -> DraftGuess:
    """Return the guess with the first two of `others`, (token, probability), as second and third guess.

    Their probabilities are lowered so that all three add up to at most 1.
    """
    (second, a), (third, b) = [*others, (None, 0.0), (None, 0.0)][:2]
    a = min(a, 1.0 - guess.confidence)
    b = min(b, 1.0 - guess.confidence - a)
    return DraftGuess(guess.token, guess.confidence, second, a, guess.drawn, guess.likeliest, None, third, b)


def _row_mass(peaks: Peaks) -> float:
    """Return the sum of exp(logit - largest logit) over a row; for a long row, a cheap estimate."""
    if len(peaks.row) > _QUICK_ROW:
        return peaks.mass()
    return float(np.exp(peaks.row - np.float32(peaks.top)).sum())


class _NoisyScores:
    """Tokens that may win the noisy draw, with their scores: logit / temperature + noise.

    A token's share in the softmax of these scores predicts another model's draw with the same noise better
    than the token's probability does: log loss 0.53 against 0.81 (bundled pair, temperature 1).
    """

    def __init__(self, peaks: Peaks, sampling: SamplingParams, position: int, drawn: int) -> None:
        row = peaks.row
        self._ids = _near_tokens(peaks, drawn)
        self._logits = row.take(self._ids).astype(np.float64)
        scores = self._logits / sampling.temperature
        scores += gumbel(sampling.seed, position, self._ids, len(row))
        scores -= scores.max()
        self._weights = np.exp(scores)
        self._sum = float(self._weights.sum())
        self._floor = peaks.top + math.log(sampling.min_p) if sampling.min_p > 0.0 else -math.inf

    def share(self, token: int) -> float:
        """Return the token's share in the softmax of all scores; it must have a score."""
        return float(self._weights[self._ids.searchsorted(token)]) / self._sum

    def best_but(self, tokens: set[int]) -> list[tuple[int, float]]:
        """Return the two tokens with the highest scores, besides `tokens`, and their shares (see share()).

        Tokens that min_p excludes count only if there are no others.
        """
        others = ~np.isin(self._ids, list(tokens))
        able = others & (self._logits >= self._floor)
        (able,) = (able if able.any() else others).nonzero()
        best = able[np.argsort(-self._weights[able], kind="stable")[:2]]
        return [(int(self._ids[i]), float(self._weights[i]) / self._sum) for i in best]


def _near_tokens(peaks: Peaks, drawn: int) -> Ids:
    """Return the ascending ids of the likeliest tokens, at most _MAX_CANDIDATES, and of the drawn token."""
    ids = peaks.above(peaks.top - _WIDEST_GAP)
    for window in _NARROWER_GAPS:
        if len(ids) <= _MAX_CANDIDATES:
            break
        ids = peaks.above(peaks.top - window)
    ids = ids[:_MAX_CANDIDATES]
    at = int(ids.searchsorted(drawn))
    return ids if at < len(ids) and ids[at] == drawn else np.insert(ids, at, drawn)


class Rule:
    """Learns which guess is right more often: the token drawn with the lead's noise, or the likeliest.

    It begins with the drawn token, which is right more often if the distributions of lead and drafter are
    flat and similar.
    """

    def __init__(self) -> None:
        self.likeliest = False  # guess the likeliest token
        self.n_judged = 0
        self._advantage = Smoothed(RULE_WEIGHT, 0.0)  # advantage of the drawn token, -1 to 1

    def judge(self, guess: DraftGuess, token: int) -> None:
        """Learn which of the guess's two candidates was right. `token`: the token committed there."""
        drawn, likeliest = token == guess.drawn, token == guess.likeliest  # which was right
        self.n_judged += 1
        if guess.drawn == guess.likeliest:
            return
        self._advantage.observe(drawn - likeliest)
        if abs(self._advantage.value) > RULE_MARGIN:
            self.likeliest = self._advantage.value < 0.0
