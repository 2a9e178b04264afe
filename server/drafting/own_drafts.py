"""The seam between a drafter's model and whatever guesses for it."""

from __future__ import annotations

from collections.abc import Sequence

from server.drafting.draft_session import DraftSession


class OwnDrafts:
    """Guesses for the tokens that a drafter's model is about to choose; this one has none.

    The model verifies them in one decode. What it publishes stays its own choice at every position.
    """

    width = 0  # rows to which a path with guesses is padded in a decode; 0: it is not

    def pays(self, sessions: Sequence[DraftSession]) -> bool:
        """Return whether propose() would guess for these sessions now."""
        return False

    def propose(
        self, sessions: Sequence[DraftSession], rooms: Sequence[int], seqs: Sequence[int], *, likeliest: bool
    ) -> dict[int, list[int]]:
        """Return guesses for the next tokens, by session.

        Args:
            sessions: Those that go on in the next decode.
            rooms: Maximum guesses for each.
            seqs: The sequence of each in the model's KV cache.
            likeliest: The model chooses its likeliest tokens, not those that the noise draws.
        """
        return {}

    def learn(self, session: int, n_right: int, n_judged: int) -> None:
        """Learn that the first n_right of the session's first n_judged guesses were right."""

    def book(self, n_sessions: int, n_tokens: int, seconds: float, *, guessed: bool) -> None:
        """Count a decode that made n_tokens, in `seconds` with all around it; `guessed`: it had guesses."""

    def close(self, session: int, *, keep: bool) -> None:
        """Forget a session; `keep`: the conversation may go on. Unknown ids are ignored."""

    def report(self) -> str:
        """Return a line for people on how often guesses were right, empty if there were none."""
        return ""
