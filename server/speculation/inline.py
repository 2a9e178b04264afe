"""The seam to a draft model inside the lead, for people with one device: it drafts between two steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from server.sampling.guess import DraftToken
from server.sampling.params import SamplingParams


class InlineDrafter(Protocol):
    """Keeps a path of guesses per session. Used by the engine thread only; never raises."""

    @property
    def td_s(self) -> float:
        """Seconds per guess, of one session or several at once; 0 before the first."""
        ...

    def follow(self, session: int, tokens: Sequence[int], sampling: SamplingParams, salt: str) -> None:
        """Begin a path after these committed tokens; what it had guessed and they confirm stays evaluated."""
        ...

    def guess(self, sessions: Sequence[int], *, second: bool) -> list[DraftToken | None]:
        """One more guess for each path, appended to it. None where the model cannot go on. second: also say
        what to guess if it is wrong."""
        ...

    def overlap(self, work: Callable[[], None]) -> None:
        """What to do whenever there is a moment for it: before a guess, or while a GPU makes it."""
        ...

    def close(self, session: int, *, keep: bool) -> None:
        """The session ended. keep: the conversation may go on. Unknown sessions are ignored."""
        ...
