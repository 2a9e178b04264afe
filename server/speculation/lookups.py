"""Keep the lookups of all sessions, and limit the time spent on their indexes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from server.estimators import LatestUsed
from server.speculation.sources.lookup import Lookup, LookupPool
from server.speculation.speculated import INDEXED, Speculated

# Share of an undrafted step's time for indexing tokens that lookups do not know yet. Half: lookups of a long
# prompt begin after twice as many steps; twice: gaps between tokens grow by a tenth.
INDEX_SHARE = 0.05
MAX_POOLS = 8  # minimum number of latest salts whose texts are kept, 16 MB each; twice as many at most


class Lookups:
    """Lookups in each session's own text, and in texts of other sessions with the same salt."""

    def __init__(self, sessions: Mapping[int, Speculated], clock: Callable[[], float]) -> None:
        self._sessions = sessions
        self._clock = clock
        self._pools = LatestUsed(lambda _: LookupPool(), MAX_POOLS)  # by salt

    def open(self, salt: str) -> Lookup:
        """Return a lookup for a new session. It also searches earlier replies of sessions with this salt."""
        return Lookup(pool=self._pools[salt])

    def close(self, speculated: Speculated) -> None:
        """Keep the reply of an ended session for the lookups of other sessions with its salt."""
        if speculated.lookup is not None:
            self._pools[speculated.session.bounds.salt].add(speculated.reply)

    def index(self, undrafted_s: float, *, guesses: bool) -> float:
        """Index some of the tokens that are not indexed yet: first of open sessions, then of ended ones.

        The replies of ended sessions are indexed even while no lookup guesses.

        Args:
            undrafted_s: Seconds of an undrafted step, of which about INDEX_SHARE is spent; 0.0: unknown.
            guesses: True if lookups guess, so that open sessions need their index.

        Returns:
            The seconds taken.
        """
        sessions = [one for one in self._sessions.values() if one.is_behind] if guesses else []
        pools = [pool for pool in self._pools.values() if pool.is_behind]
        behind = [one.index for one in (*sessions, *pools)]
        if not behind:
            return 0.0
        began = self._clock()
        index(behind, began + INDEX_SHARE * undrafted_s, self._clock)
        return self._clock() - began


def index(behind: Iterable[Callable[[int], int]], end: float, clock: Callable[[], float]) -> None:
    """Call the functions `behind` in order until the clock shows `end`; index at least INDEXED tokens.

    Each function indexes at most the number of tokens that it is given, and returns how many it indexed.
    """
    n_done = 0
    for index_more in behind:
        n = INDEXED
        while n == INDEXED:
            n = index_more(INDEXED)
            n_done += n
            if n_done >= INDEXED and clock() >= end:
                return
