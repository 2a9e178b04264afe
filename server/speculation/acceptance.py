"""How often a source's guesses come true, by how sure it said it was. Pure.

Every guess at a position that gets committed teaches, verified or not: what the lead commits says whether it
was right. So a source that lies stops costing rows within a few tokens, and one that the gate keeps out is
let in again as soon as it guesses well, without spending a row on finding out.

Texts differ more than sources do. So each session has rates of its own, which begin as those of all sessions
together, over a long time, and follow what happens in this one.
"""

from __future__ import annotations

from typing import NamedTuple

_BOUNDS = (26, 51, 77, 102, 128, 153, 179, 204, 230, 243, 250, 256)
_BUCKET = [next(i for i, bound in enumerate(_BOUNDS) if c < bound) for c in range(256)]
SURE = 230
"""Confidence from which a guess counts as a sure one."""

WORD, EXPERIENCE = 4, 4  # observations that a source's own word counts for, and what others saw
WINDOW, LONG_WINDOW = 64, 512  # observations that count in a session, and in all of them together
TRUST = 0.9  # of a source's word before anything is known
MEAN = 0.7  # how often a source is right before anything is known
MAX_SOURCES = 1024


class Outlook(NamedTuple):
    """What the next guess of a source is likely to be: a share of guesses, and how often these are right."""

    share: float
    acceptance: float


class _Rate:
    __slots__ = ("count", "value")

    def __init__(self, value: float, count: int) -> None:
        self.value = value
        self.count = count

    def observe(self, hit: bool, window: int) -> None:
        if self.count < window:
            self.count += 1
        self.value += (hit - self.value) / self.count


class _Source:
    __slots__ = ("best", "buckets", "n_best", "n_right", "share_sure", "sure", "unsure")

    def __init__(self, like: _Source | None) -> None:
        self.n_best = self.n_right = 0
        if like is None:
            middles = [(low + high) / 510 for low, high in zip((0, *_BOUNDS), _BOUNDS, strict=False)]
            self.buckets = [_Rate(TRUST * middle, WORD) for middle in middles]
            self.best, self.share_sure = _Rate(MEAN, WORD), _Rate(0.5, WORD)
            self.sure, self.unsure = _Rate(TRUST, WORD), _Rate(0.5, WORD)
        else:
            self.buckets = [_begin(rate) for rate in like.buckets]
            self.best, self.share_sure = _begin(like.best), _begin(like.share_sure)
            self.sure, self.unsure = _begin(like.sure), _begin(like.unsure)

    def observe_best(self, sure: bool, hit: bool, window: int) -> None:
        self.n_best += 1
        self.n_right += hit
        self.best.observe(hit, window)
        self.share_sure.observe(sure, window)
        (self.sure if sure else self.unsure).observe(hit, window)


def _begin(like: _Rate) -> _Rate:
    return _Rate(like.value, min(like.count, EXPERIENCE))


class Acceptance:
    """Rates by source name. Confidences are bytes: probability times 255."""

    def __init__(self, parent: Acceptance | None = None) -> None:
        """parent: what rates begin as, and what learns beside this one; None for all sessions together."""
        self._parent = parent
        self._window = WINDOW if parent else LONG_WINDOW
        self._sources: dict[str, _Source] = {}

    def observe(self, source: str, confidence: int, hit: bool) -> None:
        """A guess of this source at a position that was committed, and whether it was right."""
        bucket = _BUCKET[confidence]
        self._known(source).buckets[bucket].observe(hit, self._window)
        if self._parent is not None:
            self._parent._known(source).buckets[bucket].observe(hit, LONG_WINDOW)

    def observe_best(self, source: str, confidence: int, hit: bool) -> None:
        """Whether the guess that this source was surest of was right."""
        sure = confidence >= SURE
        self._known(source).observe_best(sure, hit, self._window)
        if self._parent is not None:
            self._parent._known(source).observe_best(sure, hit, LONG_WINDOW)

    def probability(self, source: str, confidence: int) -> float:
        """That a guess is right, given that everything before it is."""
        return self._known(source).buckets[_BUCKET[confidence]].value

    def mean(self, source: str) -> float:
        """That this source's best guess is right, given that everything before it is."""
        return self._known(source).best.value

    def score(self, source: str) -> tuple[int, int]:
        """At how many committed positions it had a guess, and at how many its best one was right."""
        known = self._known(source)
        return known.n_best, known.n_right

    def outlook(self, source: str) -> tuple[Outlook, Outlook]:
        """What its next best guess will be: sure, or not."""
        known = self._known(source)
        share = known.share_sure.value
        return Outlook(share, known.sure.value), Outlook(1.0 - share, known.unsure.value)

    def _known(self, source: str) -> _Source:
        known = self._sources.get(source)
        if known is None:
            if len(self._sources) >= MAX_SOURCES:
                self._sources.clear()
            like = self._parent._known(source) if self._parent else None
            known = self._sources[source] = _Source(like)
        return known
