"""A decode that a GPU works on while the drafter looks at the guesses before it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from drafters.draft_session import DraftSession
from server.llama.backend import Logits


@dataclass(slots=True)
class Flight:
    """A row for the last token of each session's path, begun before that guess was looked at. begun: when the
    logits before these had come; timed: nothing else is to be done before its own come."""

    sessions: list[DraftSession]
    logits: Callable[[], Logits]
    begun: float
    timed: bool = False

    def land(self) -> tuple[list[DraftSession], Logits]:
        """Wait for it. Returns the sessions whose path nobody has changed meanwhile, and their rows."""
        logits = self.logits()
        kept = [i for i, session in enumerate(self.sessions) if not session.pending]
        return [self.sessions[i] for i in kept], logits[kept]

    def abandon(self) -> None:
        """Wait for it, and have its tokens evaluated again."""
        self.logits()
        for session in self.sessions:
            session.n_kv = min(session.n_kv, len(session.tokens) - 1)
            session.told = True
