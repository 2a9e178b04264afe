"""The seam between the worker and whatever guesses: a model, a lookup, a replay."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from server.drafting.draft_session import DraftSession
from server.estimators import Smoothed


class Drafter(Protocol):
    """Extends the paths of sessions. Used by one thread. td: measured seconds per guess of one session."""

    td: Smoothed

    def obstacle(self, session: DraftSession) -> str | None:
        """Return why this session cannot be drafted for now, None if it can."""
        return None

    def wants(self, session: DraftSession) -> bool:
        """Return whether another guess for this session is worth making."""
        ...

    def watch(self, news: Callable[[], bool], wake: Callable[[], None]) -> None:
        """Take what the worker offers.

        Args:
            news: Tells whether a message waits, so that it is no time to begin another decode.
            wake: Gives this drafter another turn when somebody it asked has answered. Any thread may call it.
        """

    def advance(self, sessions: Sequence[DraftSession]) -> Sequence[DraftSession] | None:
        """One step for the sessions that fit into a batch: evaluate a chunk, or add guesses to the path
        (DraftSession.add, lengthen) and to branches. Returns each session as often as it got a guess; None if
        no session had room, until a lead says something. Raises BackendError."""
        ...

    def close(self, session: DraftSession, *, keep: bool) -> None:
        """The session ended. keep: its KV cells, since the conversation may go on."""
        ...

    def report(self) -> str:
        """Return what else there is to tell of it, for people; empty if there is nothing."""
        return ""
