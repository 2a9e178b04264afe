"""Whether branches are worth the rows that they need, where all decodes have one of two shapes. Pure.

With branches every guess costs more, and after a wrong one the next guesses are often there already. Without,
the lead's next step has nothing to verify, and what was drafted beyond the mistake is lost: about the time of
one of the lead's steps.
"""

from __future__ import annotations

from collections.abc import Mapping

RESCUED = 0.3  # of wrong guesses: those for which a branch is right, before anything is known
SMOOTHING = 1 / 32  # of the share of wrong guesses
RESCUE_SMOOTHING = 1 / 16  # of the share of them that a branch rescues,
FORGETTING = 1 / 128  # which without branches nobody knows: they are tried anew some day
STEP_SMOOTHING = 0.1  # of the lead's steps
ASSUMED = 0.15  # share of wrong guesses before anything is known
BETTER = 1.25  # times as much the other way must gain: each change costs


class Breadth:
    """Learns from commits how often guesses are wrong and how long the lead's steps take."""

    def __init__(self, steady: Mapping[int, float]) -> None:
        """steady: seconds of a decode by its rows, for a path alone (1) and with all its branches (the
        most); {}: a decode may have any shape, and branches their rows."""
        self._narrow = min(steady, default=0)
        self._wide = max(steady, default=0)
        self._extra_s = steady[self._wide] - steady[self._narrow] if steady else 0.0
        self._wrong = ASSUMED
        self._rescued = RESCUED
        self._step_s = 0.0
        self.branches = True

    @property
    def rows(self) -> int:
        """What a decode is padded to a multiple of, 1: it is not."""
        return self._wide if self.branches and self._wide else 1

    def committed(self, n_right: int, n_wrong: int, n_rescued: int, step_s: float) -> None:
        """The lead confirmed so many guesses, and so many were wrong, for n_rescued of which a branch was
        right; it took step_s for that."""
        for _ in range(n_right):
            self._wrong -= SMOOTHING * self._wrong
        for _ in range(n_wrong):
            self._wrong += SMOOTHING * (1.0 - self._wrong)
        for i in range(n_wrong):
            if self.branches:
                self._rescued += RESCUE_SMOOTHING * ((i < n_rescued) - self._rescued)
            else:
                self._rescued += FORGETTING * (RESCUED - self._rescued)
        if n_right + n_wrong == 0 or not self._wide:
            return
        self._step_s += (step_s - self._step_s) * (STEP_SMOOTHING if self._step_s else 1.0)
        gain_s = self._rescued * self._wrong * self._step_s
        if self.branches and gain_s * BETTER < self._extra_s:
            self.branches = False
        elif not self.branches and gain_s > BETTER * self._extra_s:
            self.branches = True
