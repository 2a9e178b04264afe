"""Draft without a model: look up what followed the same tokens earlier, in this or other recent texts."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from drafters.drafter import Drafter
from server.drafting.draft_session import DraftSession
from server.drafting.expansion import PATH_MIN, TD_WEIGHT
from server.estimators import LatestUsed, Smoothed
from server.sampling.draft_token import DraftGuess
from server.speculation.lookups import MAX_POOLS
from server.speculation.sources.lookup import Lookup, LookupPool

PORTION = 4096  # tokens indexed in one step: 5 to 10 ms, while other sessions wait. Twice: 10 to 20 ms


@dataclass(slots=True)
class _Followed:
    """The lookup of one session: an index of its text, in which guesses are found."""

    lookup: Lookup
    n_opened: int  # number of the session's Open messages when the index was last compared with its text
    n_guessed: int = 0  # committed tokens at its last guess


class LookupDrafter(Drafter):
    """A Drafter without a model, for any vocabulary. It remembers replies, separately for each salt."""

    def __init__(self, *, clock: Callable[[], float] = time.perf_counter) -> None:
        self._pools = LatestUsed(lambda _: LookupPool(), MAX_POOLS)  # by salt
        self._clock = clock
        self._followed: dict[int, _Followed] = {}  # by session
        self.td = Smoothed(TD_WEIGHT)

    def wants(self, session: DraftSession) -> bool:
        """Return True if tokens were committed since the last guess for this session."""
        followed = self._followed.get(session.id)
        now = session.n_opened, session.n_committed
        return not session.lost and (followed is None or now != (followed.n_opened, followed.n_guessed))

    def advance(self, sessions: Sequence[DraftSession]) -> list[DraftSession]:
        grown: list[DraftSession] = []
        for session in sessions:
            followed = self._index_of(session)
            n = followed.lookup.n_tokens
            followed.lookup.extend(session.tokens[n : min(n + PORTION, session.n_committed)])
            if followed.lookup.n_tokens < session.n_committed:
                continue
            followed.n_guessed = session.n_committed
            began = self._clock()
            guesses = list(map(DraftGuess, *followed.lookup.guess(session.max_ahead)))
            n_new = session.lengthen(guesses, PATH_MIN)
            grown += [session] * n_new
            if n_new:
                self.td.observe((self._clock() - began) / n_new)
        return grown

    def close(self, session: DraftSession, *, keep: bool) -> None:
        """Keep the session's reply for lookups of other sessions with its salt. `keep` is ignored."""
        if self._followed.pop(session.id, None) is not None:
            pool = self._pools[session.salt]
            pool.add(session.tokens[session.n_prompt : session.n_committed])
            pool.index(session.n_committed)

    def _index_of(self, session: DraftSession) -> _Followed:
        """Return the session's index; a new one if the session's latest Open message contradicts it."""
        followed = self._followed.get(session.id)
        if followed is not None and followed.n_opened != session.n_opened:
            followed.n_opened, followed.n_guessed = session.n_opened, 0
            committed = session.tokens[: session.n_committed]
            if not followed.lookup.begins(committed):
                followed = None
        if followed is None:
            lookup = Lookup(pool=self._pools[session.salt])
            followed = self._followed[session.id] = _Followed(lookup, session.n_opened)
        return followed
