"""Which guess is right more often where the lead samples: the shared noise's or the likeliest token. Pure."""

from __future__ import annotations

from drafters.guessing import DraftGuess
from server.estimators import Smoothed

# Of a position where the two differ. Simulated: equals change twice in 1,000 such positions, and one that is
# right in 40 percent of them, not 20, is found after 32. Twice: 9 changes, 13 positions; half: 0.6 and 64.
WEIGHT = 1 / 64
# Share of such positions by which the other must be better. Half: 7 changes, 13 positions; twice: 0.2 and 98.
MARGIN = 0.1


class Rule:
    """Begins with the shared noise, which is better where distributions are flat and alike."""

    def __init__(self) -> None:
        self.likeliest = False  # guess the likeliest token
        self.n_judged = 0
        self._advantage = Smoothed(WEIGHT, 0.0)  # of the noise

    def judge(self, guess: DraftGuess, token: int) -> None:
        """`token` was committed in the place of this guess."""
        drawn, likeliest = token == guess.drawn, token == guess.likeliest
        self.n_judged += 1
        if guess.drawn == guess.likeliest:
            return
        self._advantage.observe(drawn - likeliest)
        if abs(self._advantage.value) > MARGIN:
            self.likeliest = self._advantage.value < 0.0
