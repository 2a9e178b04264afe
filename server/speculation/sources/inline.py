"""The seam to a draft model inside the lead, which drafts between two steps: for one device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from server.sampling.draft_token import DraftToken
from server.sampling.params import SamplingParams


class InlineDrafter(Protocol):
    """Keeps a path of guesses per session. For the engine thread only; never raises."""

    @property
    def td_s(self) -> float:
        """Seconds to guess for one session or several at once; 0 before the first guess."""
        ...

    def follow(
        self, session: int, tokens: Sequence[int], sampling: SamplingParams, salt: str, n_dropped: int = 0
    ) -> None:
        """Begin a path after these committed tokens, of which tokens[i] has the noise of position
        i + n_dropped; guesses that they confirm stay evaluated."""
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
