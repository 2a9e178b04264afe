"""Measure what fraction of the tokens each drafter guesses right, in each session and overall."""

from __future__ import annotations

from server.estimators import LatestUsed
from server.speculation.hits import MAX_SOURCES, MEAN, OVERALL_WINDOW, SESSION_WINDOW
from server.speculation.sources.assignment import Yield
from server.speculation.speculated import Speculated

# Minimum tokens by which a drafter is judged, and steps between two reviews of sessions' drafters. Half: a
# good drafter may have guessed few of 16 tokens by chance; twice: a useless one keeps a session for 128
# tokens.
JUDGED = SESSION_WINDOW // 2
# Assumed tokens of a conversation that a new drafter reads per step of the lead: a GPU reads 2,000 a second
# beside 100 steps, a CPU 150 beside 10. Half: a drafter that never guesses keeps its place for twice as long;
# twice: a drafter that reads a long prompt loses its place before its first guess.
READS = 8


class Yields:
    """Contributions of drafters: the fraction of the tokens that each guesses right, by session and overall.

    In a session where a drafter is new, its overall fraction is assumed.
    """

    def __init__(self) -> None:
        self._all = LatestUsed[Yield](
            lambda _: Yield(OVERALL_WINDOW), MAX_SOURCES
        )  # outlives a drafter that reconnects

    def share(self, speculated: Speculated, drafter: str) -> float:
        """Return the fraction of the session's tokens that this drafter is expected to guess right."""
        share, own = self._all[drafter].share(), speculated.yields.get(drafter)
        return own.share(share) if own else share

    def fits(self, speculated: Speculated, drafter: str) -> float:
        """Return the drafter's fraction of right guesses in this session alone, to compare sessions.

        Return MEAN if the drafter has not drafted in this session yet.
        """
        own = speculated.yields.get(drafter)
        return own.share() if own else MEAN

    def begin(self, speculated: Speculated, drafter: str) -> None:
        """Add the drafter to the session, and begin to count its right guesses.

        The first tokens do not count against the drafter, since it has to read the conversation first.
        """
        one = speculated.yields.setdefault(drafter, Yield(SESSION_WINDOW))
        n_tokens, one.n_right = speculated.tree.position, speculated.hits.n_right(drafter)
        one.n_tokens = n_tokens + n_tokens // READS
        speculated.drafters[drafter] = one

    def measure(self, speculated: Speculated) -> int:
        """Count the right guesses of the session's drafters.

        A drafter is counted once JUDGED tokens have been committed since it was counted last.

        Returns:
            The largest number of tokens that were counted for one drafter.
        """
        longest, position = 0, speculated.tree.position
        for drafter, own in speculated.drafters.items():
            right = speculated.hits.n_right(drafter)
            n_tokens, n_right = position - own.n_tokens, right - own.n_right
            if n_tokens >= JUDGED:
                longest = max(longest, n_tokens)
                for one in (own, self._all[drafter]):
                    # the estimated reading time may have been too short
                    one.observe(min(max(0, n_right), n_tokens), n_tokens)
            if n_tokens >= JUDGED or (n_tokens < 0 and n_right > 0):  # or it guesses already
                own.n_tokens, own.n_right = position, right
        for drafter, one in speculated.yields.items():
            if drafter not in speculated.drafters:
                one.wait(longest)
        return longest

    def wait(self, drafter: str, n_tokens: int) -> None:
        """Count n_tokens that were committed while this drafter had no session."""
        self._all[drafter].wait(n_tokens)
