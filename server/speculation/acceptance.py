"""How often a source's guesses come true, by how sure it said it was. Pure.

Every guess at a position that gets committed teaches, verified or not: what the lead commits says whether it
was right. So a source that lies stops costing rows within a few tokens, and one that the gate keeps out is
let in again as soon as it guesses well, without spending a row on finding out.
"""

from __future__ import annotations

from dataclasses import dataclass, field

_BOUNDS = (26, 51, 77, 102, 128, 153, 179, 204, 230, 243, 250, 256)
_BUCKET = [next(i for i, bound in enumerate(_BOUNDS) if c < bound) for c in range(256)]
N_BUCKETS = len(_BOUNDS)

PRIOR_WEIGHT = 4  # observations that a source's own word counts for
WINDOW = 64  # observations that count afterwards
TRUST = 0.9  # of a source's word before anything is known
MAX_SOURCES = 1024


@dataclass(slots=True)
class _Rate:
    value: float
    count: int = PRIOR_WEIGHT

    def observe(self, hit: bool) -> None:
        self.count = min(self.count + 1, WINDOW)
        self.value += (hit - self.value) / self.count


@dataclass(slots=True)
class _Source:
    buckets: list[_Rate] = field(
        default_factory=lambda: [
            _Rate(TRUST * (low + high) / 510) for low, high in zip((0, *_BOUNDS), _BOUNDS, strict=False)
        ]
    )
    overall: _Rate = field(default_factory=lambda: _Rate(0.7))


class Acceptance:
    """Rates by source name. Confidences are bytes: probability times 255."""

    def __init__(self) -> None:
        self._sources: dict[str, _Source] = {}

    def observe(self, source: str, confidence: int, hit: bool) -> None:
        """A guess of this source at a position that was committed, and whether it was right."""
        self._known(source).buckets[_BUCKET[confidence]].observe(hit)

    def observe_best(self, source: str, hit: bool) -> None:
        """Whether the guess that this source was surest of was right."""
        self._known(source).overall.observe(hit)

    def probability(self, source: str, confidence: int) -> float:
        """That a guess is right, given that everything before it is."""
        return self._known(source).buckets[_BUCKET[confidence]].value

    def mean(self, source: str) -> float:
        """That this source's best guess is right, given that everything before it is."""
        return self._known(source).overall.value

    def _known(self, source: str) -> _Source:
        known = self._sources.get(source)
        if known is None:
            if len(self._sources) >= MAX_SOURCES:
                self._sources.clear()
            known = self._sources[source] = _Source()
        return known
