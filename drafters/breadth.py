"""Whether branches are worth their rows, where all decodes have one of two shapes. Pure.

With branches every guess costs more, but after a wrong one the next guesses are often there already. Without,
the lead's next step has nothing to verify: about one of the lead's steps is lost.
"""

from __future__ import annotations

from collections.abc import Mapping

from server.estimators import Smoothed

RESCUED = 0.3  # of wrong guesses: those for which a branch is right, before anything is known
ASSUMED = 0.15  # share of wrong guesses before anything is known; forgotten after some 32 guesses
# Weights of one observation. Off by two: twice, branches come and go by luck within a line; half, a text that
# is guessed worse has no branches for 64 guesses.
WRONG_WEIGHT = 1 / 32  # a guess, wrong or not
RESCUE_WEIGHT = 1 / 16  # a wrong guess, for which a branch was right or not
# of a wrong guess without branches: what they would rescue drifts to RESCUED, to be tried anew
FORGETTING = 1 / 128
STEP_WEIGHT = 0.1  # a step of the lead
BETTER = 1.25  # times as much the other way must gain: each change costs a decode of the slow kind


class Breadth:
    """Learns from commits how often guesses are wrong, and how long the lead's steps take."""

    def __init__(self, steady: Mapping[int, float]) -> None:
        """steady: seconds of a decode by its rows, for a path alone (1) and with all its branches (the most);
        {}: decodes may have any shape."""
        self._narrow = min(steady, default=0)
        self._wide = max(steady, default=0)
        self._extra_s = steady[self._wide] - steady[self._narrow] if steady else 0.0
        self._wrong = Smoothed(WRONG_WEIGHT, ASSUMED)
        self._rescued = Smoothed(RESCUE_WEIGHT, RESCUED)
        self._step_s = Smoothed(STEP_WEIGHT)
        self.branches = True

    @property
    def rows(self) -> int:
        """A decode is padded to a multiple of this."""
        return self._wide if self.branches and self._wide else 1

    def committed(self, n_right: int, n_wrong: int, n_rescued: int, step_s: float) -> None:
        """In step_s the lead confirmed n_right guesses, and n_wrong were wrong, of which n_rescued had a
        branch that was right."""
        for i in range(n_right + n_wrong):
            self._wrong.observe(i >= n_right)
        for i in range(n_wrong):
            if self.branches:
                self._rescued.observe(i < n_rescued)
            else:
                self._rescued.observe(RESCUED, FORGETTING)
        if n_right + n_wrong == 0 or not self._wide:
            return
        self._step_s.observe(step_s)
        gain_s = self._rescued.value * self._wrong.value * self._step_s.value
        if self.branches and gain_s * BETTER < self._extra_s:
            self.branches = False
        elif not self.branches and gain_s > BETTER * self._extra_s:
            self.branches = True
