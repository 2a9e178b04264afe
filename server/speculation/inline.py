"""The seam to a draft model inside the lead, for people with one device: it drafts between two steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from server.sampling.draw import Distribution
from server.sampling.params import SamplingParams


@dataclass(frozen=True, slots=True)
class Guess:
    """The draft model's next token, and its runner-up; confidences are probabilities. drafted: what the token
    is a sample of."""

    token: int
    confidence: float
    runner_up: int
    runner_up_confidence: float
    drafted: Distribution | None = None


class InlineDrafter(Protocol):
    """Keeps a path of guesses per session. Used by the engine thread only; never raises."""

    @property
    def td_s(self) -> float:
        """Seconds per guess, of one session or several at once; 0 before the first."""
        ...

    def follow(self, session: int, tokens: Sequence[int], sampling: SamplingParams) -> None:
        """Begin a path after these committed tokens; what it had guessed and they confirm stays evaluated."""
        ...

    def guess(self, sessions: Sequence[int]) -> list[Guess | None]:
        """One more guess for each path, appended to it. None where the model cannot go on."""
        ...

    def close(self, session: int, *, keep: bool) -> None:
        """The session ended. keep: the conversation may go on. Unknown sessions are ignored."""
        ...
