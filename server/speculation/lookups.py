"""The lookups of all sessions: what they have indexed, and what time that and searching take."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from server.engine.proposer import TimedStep
from server.estimators import Median
from server.speculation.gating.balance import KNOWN, LATEST
from server.speculation.sources.lookup import Lookup, LookupPools
from server.speculation.speculated import Speculated

# Share of a plain step's time in which lookups index tokens that they miss. Half: lookups of a long prompt
# begin after twice as many steps; twice: gaps grow by a tenth.
INDEX_SHARE = 0.05
INDEXED = 64  # tokens of a step at least, and between two looks at the clock; about 0.1 ms


class Lookups:
    """guesses: whether lookups guess in this step; alone: only lookups do."""

    def __init__(
        self,
        sessions: Mapping[int, Speculated],
        clock: Callable[[], float],
        *,
        guesses: bool,
        overlaps: bool,
    ) -> None:
        """guesses: at first. overlaps: index() is called while a GPU decodes, so that it takes no time."""
        self.guesses, self.alone = guesses, False
        self._sessions = sessions
        self._clock = clock
        self._overlaps = overlaps
        self._pools = LookupPools()
        self._took_s = 0.0
        # seconds for each session, by the number of bits of the number of sessions
        self._quiet = defaultdict[int, Median](lambda: Median(LATEST))

    def open(self, salt: str) -> Lookup:
        """For a session, which may also look into the texts of its salt."""
        return Lookup(pool=self._pools.of(salt))

    def close(self, speculated: Speculated) -> None:
        """The session's reply is a text for others."""
        if speculated.lookup is not None:
            self._pools.of(speculated.session.bounds.salt).add(speculated.reply)

    def committed(self, speculated: Speculated, n: int) -> None:
        """The session, for which they guess, has n more tokens."""
        if speculated.n_indexed + n == len(speculated.session.tokens):
            speculated.index(n)

    def index(self, plain_s: float) -> None:
        """Index some of what lookups that guess miss, then some of the texts that ended, also while lookups
        rest: else they go on without these. plain_s: seconds of a plain step, 0 if that is not known."""
        sessions = [one for one in self._sessions.values() if one.is_behind] if self.guesses else []
        if behind := [*sessions, *self._pools.behind()]:
            began = self._clock()
            index(behind, began + INDEX_SHARE * plain_s, self._clock)
            self._took_s += 0.0 if self._overlaps else self._clock() - began

    def took(self, began: float) -> None:
        """The time since `began` was spent on lookups."""
        self._took_s += self._clock() - began

    def taken_s(self, step: TimedStep, spent_s: float = 0.0, n_passed: int = 0, n_asked: int = 1) -> float:
        """Seconds that lookups took since the last call. If only lookups guess, that is the time of the step
        outside its decode, less that of steps without guesses: asking, telling and verifying take the lead's
        Python, too. n_passed: steps in a row in which nobody was asked. n_asked: steps since the last call in
        which somebody was. spent_s: seconds of the step that went into drafting."""
        took_s, self._took_s = self._took_s, 0.0
        if n_passed or self.alone:
            outside_s = step.step_s - step.decode_s - spent_s
            quiet = self._quiet[step.n_sessions.bit_length()]
            if n_passed:
                quiet.observe(outside_s / step.n_sessions)
            elif quiet.count >= KNOWN:
                return max(took_s, n_asked * (outside_s - step.n_sessions * quiet.value))
        return took_s


class Indexing(Protocol):
    """What indexes at most `most` tokens that it misses, and tells how many."""

    def index(self, most: int) -> int: ...


def index(behind: Iterable[Indexing], end: float, clock: Callable[[], float]) -> None:
    """Have these index, in order, what they miss, until `end` on this clock: INDEXED tokens at least."""
    n_done = 0
    for one in behind:
        n = INDEXED
        while n == INDEXED:
            n = one.index(INDEXED)
            n_done += n
            if n_done >= INDEXED and clock() >= end:
                return
