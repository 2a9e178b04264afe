"""Drafters on the lead's own machine: tried out, and paused if they cost more than they bring (ADR 8)."""

from __future__ import annotations

from server.speculation.gating.trial import Trial
from server.speculation.sources.remote import RemoteDrafters


class Neighbours:
    """One trial of all of them together; begins anew when the last one leaves or another joins in a pause."""

    def __init__(self, remote: RemoteDrafters) -> None:
        self._remote = remote
        self._trial = Trial()

    @property
    def pausing(self) -> bool:
        return not self._trial.on

    @property
    def nobody_drafts(self) -> bool:
        """Whether they pause and no other drafter works."""
        return self.pausing and not self._remote.drafting

    @property
    def muted(self) -> bool:
        """Whether the next step goes without guesses."""
        return self._trial.muted and self._are_tried

    @property
    def _are_tried(self) -> bool:
        """Whether a step tells anything of them: they work, or would if they did not rest."""
        return any(record.n_assigned or record.resting for record in self._remote.neighbours)

    def stepped(self, n_tokens: int, seconds: float, *, plain: bool, n_sessions: int) -> None:
        """As Trial.step()."""
        here = self._remote.neighbours
        others = self.pausing and not all(record.resting for record in here)  # joined since
        if self._trial.begun and (not here or others):
            self._trial = Trial()
            self._remote.rest(False)
        if self._are_tried:
            paused, score = self.pausing, self._remote.score()
            self._trial.step(n_tokens, seconds, plain=plain, score=score, sessions=n_sessions)
            if self.pausing != paused:
                self._remote.rest(self.pausing)
