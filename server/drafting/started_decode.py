"""A decode that a GPU runs while the drafter handles the guesses before it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from server.drafting.draft_session import DraftSession
from server.llama.backend import Logits


@dataclass(slots=True)
class StartedDecode:
    """One row for the last token of each session's path, started before that guess was handled."""

    sessions: list[DraftSession]
    logits: Callable[[], Logits]
    begun: float  # seconds, by the clock, when the logits before these arrived
    timed: bool = False  # the time until its logits is that of one decode: no other is planned meanwhile

    def finish(self) -> tuple[list[DraftSession], Logits]:
        """Wait for the logits; return the sessions whose path has not changed meanwhile, and their rows."""
        logits = self.logits()
        kept = [i for i, session in enumerate(self.sessions) if not session.pending]
        return [self.sessions[i] for i in kept], logits[kept]

    def discard(self) -> None:
        """Wait for the logits, drop them, and let the tokens be evaluated again."""
        self.logits()
        for session in self.sessions:
            session.n_kv = min(session.n_kv, len(session.tokens) - 1)
            session.told = True
