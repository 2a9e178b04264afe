"""The seam between the worker and whatever guesses: a model here, lookup or replay elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from drafters.session import DraftSession


class Drafter(Protocol):
    """Extends the paths of sessions. Used by one thread."""

    @property
    def td_us(self) -> int:
        """Microseconds per guess of one session, measured; 0 before the first."""
        ...

    def advance(self, sessions: Sequence[DraftSession]) -> Iterable[DraftSession]:
        """One step for these sessions, as many as fit: catch up by a chunk, or add one guess to the path
        (DraftSession.extend). Returns those whose path grew. Raises BackendError."""
        ...

    def wants(self, session: DraftSession) -> bool:
        """Whether another guess for this session could be worth something."""
        ...

    def close(self, session: DraftSession, *, keep: bool) -> None:
        """The session ended; keep what was computed for it in case the conversation goes on."""
        ...
