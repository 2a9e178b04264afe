"""Interface between the worker and a source of guesses: a model, an engine, a lookup or a replay."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from server.drafting.draft_session import DraftSession
from server.estimators import Smoothed


class Drafter(Protocol):
    """Source of guesses, which extends the paths of sessions. Used by one thread."""

    td: Smoothed  # measured seconds per guess of one session

    def obstacle(self, session: DraftSession) -> str | None:
        """Return why this session cannot be drafted for now, None if it can."""
        return None

    def wants(self, session: DraftSession) -> bool:
        """Return True if another guess for this session is worth making."""
        ...

    def watch(self, has_messages: Callable[[], bool], wake: Callable[[], None]) -> None:
        """Register two functions of the worker.

        Args:
            has_messages: Returns True if a message waits, so no further decode should begin.
            wake: Gives this drafter another turn when an answer has arrived. Any thread may call it.
        """

    def advance(self, sessions: Sequence[DraftSession]) -> Sequence[DraftSession] | None:
        """Take one step for the sessions that fit into a batch: evaluate a chunk, or add guesses.

        Guesses are added to the path (DraftSession.add, lengthen) and to branches. Raises BackendError.

        Returns:
            Each session, once for each of its guesses; None if no session can get guesses until a lead sends
            a message.
        """
        ...

    def close(self, session: DraftSession, *, keep: bool) -> None:
        """Forget a session that ended. If `keep`, keep its KV cells, since the conversation may continue."""
        ...
