"""The seam to a draft model inside the lead, which drafts between two steps: for one device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from server.engine.proposer import OpenedSession
from server.sampling.draft_token import DraftToken


class InlineDrafter(Protocol):
    """Keeps a path of guesses per session. For the engine thread only; never raises."""

    @property
    def td_s(self) -> float:
        """Seconds to guess for one session or several at once; 0 before the first guess."""
        ...

    def follow(self, session: OpenedSession) -> None:
        """Begin a path after the session's committed tokens; guesses that they confirm stay evaluated."""
        ...

    def guess(self, sessions: Sequence[int], *, second: bool) -> list[DraftToken | None]:
        """Append one guess to each path. None where the model cannot go on. second: with a runner-up."""
        ...

    def overlap(self, work: Callable[[], None]) -> None:
        """Call `work` before each guess, or while a GPU makes it."""
        ...

    def close(self, session: int, *, keep: bool) -> None:
        """The session ended. keep: the conversation may go on. Unknown sessions are ignored."""
        ...
