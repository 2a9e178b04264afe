"""The seam between the worker and whatever guesses: a model, a lookup, a replay."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from drafters.draft_session import DraftSession


class Drafter(Protocol):
    """Extends the paths of sessions. Used by one thread."""

    @property
    def td_us(self) -> int:
        """Microseconds per guess of one session, measured; 0 before the first."""
        ...

    def obstacle(self, session: DraftSession) -> str | None:
        """Why nothing can be guessed for this session as it stands, if so."""
        ...

    def wants(self, session: DraftSession) -> bool:
        """Whether another guess for this session could be worth something."""
        ...

    def overlap(self, work: Callable[[], None]) -> bool:
        """Have this done in every step from now on while a GPU works at it. Returns whether it will be."""
        ...

    def advance(self, sessions: Sequence[DraftSession]) -> Sequence[DraftSession] | None:
        """One step for these sessions, as many as fit: catch up by a chunk, or add guesses to the path
        (DraftSession.extend, add) and to branches. Returns each session as often as it got a guess; None
        if there was room for none, which only a message from a lead can change. Raises BackendError."""
        ...

    def close(self, session: DraftSession, *, keep: bool) -> None:
        """The session ended; keep what was computed for it in case the conversation goes on."""
        ...
