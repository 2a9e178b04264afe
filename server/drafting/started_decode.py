"""A decode that a GPU works on while the drafter looks at the guesses before it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from server.drafting.draft_session import DraftSession
from server.llama.backend import Logits


@dataclass(slots=True)
class StartedDecode:
    """One row for the last token of each session's path, begun before that guess was looked at.

    begun: seconds of the clock at which the logits before these had come. timed: the time until its logits
    come is that of one decode, since the drafter plans no other decode meanwhile.
    """

    sessions: list[DraftSession]
    logits: Callable[[], Logits]
    begun: float
    timed: bool = False

    def finish(self) -> tuple[list[DraftSession], Logits]:
        """Wait for the logits. Returns the sessions whose path has not changed meanwhile, and their rows."""
        logits = self.logits()
        kept = [i for i, session in enumerate(self.sessions) if not session.pending]
        return [self.sessions[i] for i in kept], logits[kept]

    def discard(self) -> None:
        """Wait for the logits, drop them, and let the tokens be evaluated again."""
        self.logits()
        for session in self.sessions:
            session.n_kv = min(session.n_kv, len(session.tokens) - 1)
            session.told = True
