"""Learn how often a source's guesses are accepted, by the confidence that it gave them. Pure.

Every guess at a committed position counts, verified or not: the committed token shows whether it was right.
So a source that overstates its confidence stops costing rows within a few tokens. A source that the planner
excludes returns once it guesses well, without a row spent to find out.

Texts differ more than sources do. So each session has a level for each source: the number of right guesses,
divided by the number that the rates over all sessions predict. This one number adapts to a hard text within
few guesses; a rate for each confidence would need as many guesses of each confidence.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from server.estimators import LatestUsed, Mean, Ratio
from server.speculation.wire.roster import MAX_PEERS

_BOUNDS = (26, 51, 77, 102, 128, 153, 179, 204, 230, 243, 250, 256)
_BUCKET = [next(i for i, bound in enumerate(_BOUNDS) if c < bound) for c in range(256)]
SURE_CONFIDENCE_BYTE = 230
"""Minimum confidence (of 255) of a guess that counts as sure: nine in ten."""

# Weight, in guesses, of a source's own confidence and of the rates assumed for a new session. Half: one
# unlucky guess shuts out a good source; twice: a lying source costs rows for four guesses more. With 6 for
# sessions, 9 of 336 replies are slower than 0.95 of undrafted ones; with 4, 7 are. Most totals are within 1
# percent (benchmarks.inside --every-way --prompts 16 --max-tokens 120, four machines).
WORD = 4
# Latest guesses that count: in one session, whose subject changes within some lines, and in all sessions
# together. Half: rates scatter by 6 points instead of 4; twice: a change of subject is noticed after 128
# guesses.
SESSION_WINDOW, OVERALL_WINDOW = 64, 512
SUREST = 0.995  # maximum of a rate adjusted to a session: no guess is certain
TRUST = 0.9  # assumed rate, as a share of the confidence: models are a little too sure of themselves
MEAN = (
    TRUST + 0.5
) / 2  # assumed rate of a source's best guesses: half of them are sure, the others a toss-up
# Minimum number of latest used sources whose rates are remembered, 0.5 KB each: as many as there may be
# drafters, since an assignment asks for all of them. Sources that agree count as one source more, and so does
# a drafter that restarts. With 256 drafters, each further name makes the lead forget another one. Half:
# drafters push each other out. Twice: names that never come back take 0.5 MB.
MAX_SOURCES = MAX_PEERS


_MIDDLES = [(low + high) / 510 for low, high in zip((0, *_BOUNDS), _BOUNDS, strict=False)]
_ASSUMED = [*(TRUST * middle for middle in _MIDDLES), MEAN, 0.5, TRUST, 0.5]
_BEST, _SHARE_SURE, _SURE, _UNSURE = range(len(_MIDDLES), len(_ASSUMED))  # behind the buckets


class RatesByKind:
    """Hit rates of guesses by kind: for each kind, the mean over about its `window` latest guesses.

    A kind is an index, for example of a range of confidences or of a length of match.
    """

    __slots__ = ("_counts", "_window", "rates")

    def __init__(self, assumed: Sequence[float], window: int) -> None:
        """Begin with assumed rates, by kind, each with the weight of WORD guesses.

        window: Number of latest guesses of a kind over which its rate is averaged.
        """
        self.rates = array("d", assumed)
        self._counts = array("H", [WORD] * len(assumed))
        self._window = window

    def observe(self, *seen: tuple[int, float]) -> None:
        """Learn from pairs of a kind and a value, for example 1 if a guess of this kind was right, else 0."""
        rates, counts = self.rates, self._counts
        for kind, value in seen:
            n = counts[kind]
            if n < self._window:
                n += 1
                counts[kind] = n
            rates[kind] += (value - rates[kind]) / n


def _learn(known: RatesByKind, confidence: int, hit: bool, *, best: bool) -> None:
    """Update the rates `known` of a source by one guess; HitRates.observe() explains the other arguments."""
    bucket = _BUCKET[confidence]
    if best:
        sure = confidence >= SURE_CONFIDENCE_BYTE
        known.observe((bucket, hit), (_BEST, hit), (_SHARE_SURE, sure), (_SURE if sure else _UNSURE, hit))
    else:
        known.observe((bucket, hit))


class HitRates:
    """Hit rates by source over all sessions. Confidences are bytes: probability times 255."""

    def __init__(self) -> None:
        self._sources = LatestUsed(lambda _: RatesByKind(_ASSUMED, OVERALL_WINDOW), MAX_SOURCES)

    def observe(self, source: str, confidence: int, hit: bool, *, best: bool = False) -> None:
        """Learn from a guess for a position that has been committed.

        Args:
            source: The source of the guess.
            confidence: The confidence that the source gave, as a byte.
            hit: True if the guess was right.
            best: True if this is the source's guess of highest confidence for the position.
        """
        _learn(self._sources[source], confidence, hit, best=best)

    def observe_best(self, source: str, confidence: int, hit: bool) -> None:
        """Learn from the source's guess of highest confidence for a position, as in observe().

        Only the rates of best guesses are updated.
        """
        sure = confidence >= SURE_CONFIDENCE_BYTE
        of_kind = _SURE if sure else _UNSURE
        self._sources[source].observe((_BEST, hit), (_SHARE_SURE, sure), (of_kind, hit))

    def known(self, source: str) -> RatesByKind:
        """Return the rates of this source over all sessions, by kind of guess."""
        return self._sources[source]

    def probability(self, source: str, confidence: int) -> float:
        """Return the probability that a guess of this confidence is right if all tokens before it are."""
        return self._sources[source].rates[_BUCKET[confidence]]

    def mean(self, source: str) -> float:
        """Return the probability that the source's best guess is right if all tokens before it are."""
        return self._sources[source].rates[_BEST]

    def outlook(self, source: str) -> tuple[float, float, float]:
        """Return three probabilities about the source's next best guess.

        Returns:
            The probability that its confidence is at least SURE_CONFIDENCE_BYTE (a sure guess), that a sure
            guess is right, and that an unsure guess is right.
        """
        *_, share, sure, unsure = self._sources[source].rates
        return share, sure, unsure


class _Level:
    """Level of a source in one session: right guesses divided by the number that overall rates predict."""

    __slots__ = ("hits", "n_right", "share_sure")

    def __init__(self, share_sure: float) -> None:
        self.hits = Ratio(1 - 1 / SESSION_WINDOW)
        self.hits.observe(WORD, WORD)
        self.share_sure = Mean(share_sure, WORD, SESSION_WINDOW)
        self.n_right = 0

    def applied(self, rate: float) -> float:
        """Return the rate of right guesses to expect in this session, given the rate over all sessions."""
        return min(SUREST, rate * self.hits.value)


class SessionHitRates(HitRates):
    """Hit rates of one session: the rates of all sessions times the session's own level.

    A guess changes both: the level of its session, and the rates of all sessions.
    """

    def __init__(self, everybody: HitRates) -> None:
        self._everybody = everybody
        self._levels = LatestUsed(lambda source: _Level(everybody.outlook(source)[0]), MAX_SOURCES)

    def observe(self, source: str, confidence: int, hit: bool, *, best: bool = False) -> None:
        level, known = self._levels[source], self._everybody.known(source)
        level.hits.observe(hit, known.rates[_BUCKET[confidence]])
        if best:
            level.n_right += hit
            level.share_sure.observe(confidence >= SURE_CONFIDENCE_BYTE)
        _learn(known, confidence, hit, best=best)

    def observe_best(self, source: str, confidence: int, hit: bool) -> None:
        level = self._levels[source]
        level.n_right += hit
        level.share_sure.observe(confidence >= SURE_CONFIDENCE_BYTE)
        self._everybody.observe_best(source, confidence, hit)

    def n_right(self, source: str) -> int:
        """Return how many tokens of this session were the source's best guess."""
        return self._levels[source].n_right

    def probability(self, source: str, confidence: int) -> float:
        return self._levels[source].applied(self._everybody.probability(source, confidence))

    def mean(self, source: str) -> float:
        return self._levels[source].applied(self._everybody.mean(source))

    def outlook(self, source: str) -> tuple[float, float, float]:
        level = self._levels[source]
        _, sure, unsure = self._everybody.outlook(source)
        return level.share_sure.value, level.applied(sure), level.applied(unsure)
