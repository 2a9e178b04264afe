"""How often a source's guesses are accepted, by the confidence it gave them. Pure.

Every guess at a position that gets committed is counted, verified or not: the committed token says whether it
was right. So a source that lies stops costing rows within a few tokens, and one that the gate shuts out gets
in again once it guesses well, without a row spent on finding out.

Texts differ more than sources do. So each session has rates of its own, which begin as those of all sessions
together and then follow this one.
"""

from __future__ import annotations

from typing import NamedTuple

from server.estimators import Mean

_BOUNDS = (26, 51, 77, 102, 128, 153, 179, 204, 230, 243, 250, 256)
_BUCKET = [next(i for i, bound in enumerate(_BOUNDS) if c < bound) for c in range(256)]
SURE = 230
"""Confidence (of 255) from which a guess counts as a sure one: nine in ten."""

# Observations: a text shows its rates within a line. Off by two: twice, a lying source costs rows for four
# guesses more; half, one unlucky guess shuts a good source out.
WORD, EXPERIENCE = 4, 4  # that a source's own confidence counts for, and the rates of all sessions
# Observations: a session changes its subject within some lines, a source hardly ever. Off by two: half, rates
# scatter by 6 points instead of 4; twice, a change of subject is noticed after 128 guesses.
WINDOW, LONG_WINDOW = 64, 512  # that count in a session, and in all of them together
TRUST = 0.9  # of a source's confidence, before anything is known: models are a little too sure of themselves
MEAN = 0.7  # how often a source is right, before anything is known; forgotten after WORD guesses
MAX_SOURCES = 1024  # remembered at once, agreeing ones as sources of their own: about 2 MB


class Outlook(NamedTuple):
    """What the next guess of a source is likely to be: a share of guesses, and how often these are right."""

    share: float
    acceptance: float


_MIDDLES = [(low + high) / 510 for low, high in zip((0, *_BOUNDS), _BOUNDS, strict=False)]
_ASSUMED = [*(TRUST * middle for middle in _MIDDLES), MEAN, 0.5, TRUST, 0.5]


class _Source:
    __slots__ = ("best", "buckets", "rates", "share_sure", "sure", "unsure")

    def __init__(self, like: _Source | None, window: int) -> None:
        """like: what rates begin as, None: at what is assumed."""
        if like is None:
            self.rates = [Mean(value, WORD, window) for value in _ASSUMED]
        else:
            self.rates = [Mean(rate.value, min(rate.count, EXPERIENCE), window) for rate in like.rates]
        *self.buckets, self.best, self.share_sure, self.sure, self.unsure = self.rates

    def observe_best(self, sure: bool, hit: bool) -> None:
        self.best.observe(hit)
        self.share_sure.observe(sure)
        (self.sure if sure else self.unsure).observe(hit)


class Acceptance:
    """Rates by source name. Confidences are bytes: probability times 255."""

    def __init__(self, parent: Acceptance | None = None) -> None:
        """parent: the rates of all sessions: these begin as they are, and both learn. None: this is them."""
        self._parent = parent
        self._window = WINDOW if parent else LONG_WINDOW
        self._sources: dict[str, _Source] = {}

    def observe(self, source: str, confidence: int, hit: bool, *, best: bool = False) -> None:
        """A guess of this source at a committed position, and whether it was right. best: it is the one that
        this source was surest of."""
        known = self._sources.get(source) or self._known(source)
        known.buckets[_BUCKET[confidence]].observe(hit)
        if best:
            known.observe_best(confidence >= SURE, hit)
        if self._parent is not None:
            self._parent.observe(source, confidence, hit, best=best)

    def observe_best(self, source: str, confidence: int, hit: bool) -> None:
        """Whether the guess that this source was surest of was right."""
        self._known(source).observe_best(confidence >= SURE, hit)
        if self._parent is not None:
            self._parent.observe_best(source, confidence, hit)

    def probability(self, source: str, confidence: int) -> float:
        """That a guess is right, given that everything before it is."""
        known = self._sources.get(source) or self._known(source)
        return known.buckets[_BUCKET[confidence]].value

    def mean(self, source: str) -> float:
        """That this source's best guess is right, given that everything before it is."""
        return self._known(source).best.value

    def expected(self, source: str) -> float:
        """That its next guess is right, as outlook() has it."""
        return sum(share * acceptance for share, acceptance in self.outlook(source))

    def outlook(self, source: str) -> tuple[Outlook, Outlook]:
        """Its next best guess: sure, or not."""
        known = self._known(source)
        share = known.share_sure.value
        return Outlook(share, known.sure.value), Outlook(1.0 - share, known.unsure.value)

    def _known(self, source: str) -> _Source:
        known = self._sources.get(source)
        if known is None:
            if len(self._sources) >= MAX_SOURCES:
                self._sources.clear()
            like = self._parent._known(source) if self._parent else None
            known = self._sources[source] = _Source(like, self._window)
        return known
