"""Which way of guessing is right more often where the lead samples: the shared noise or the largest logit.
Pure."""

from __future__ import annotations

from drafters.guessing import DraftGuess
from server.estimators import Smoothed

# Of a position where the two differ. Off by two: twice, the rule changes by luck; half, a lead that samples
# sharply is guessed by the worse rule for 128 such positions.
WEIGHT = 1 / 64
MARGIN = 0.1  # share of such positions by which the other must be better: as much as luck makes of equals


class Rule:
    """Begins with the shared noise, which is the better one where the distributions are flat and alike.
    Counts are of all positions judged."""

    def __init__(self) -> None:
        self.likeliest = False  # guess the largest logit
        self.n_judged = 0
        self.n_drawn_right = 0
        self.n_likeliest_right = 0
        self._advantage = Smoothed(WEIGHT, 0.0)  # of the noise

    def judge(self, guess: DraftGuess, token: int) -> None:
        """What the lead chose where this guess was made."""
        drawn, likeliest = token == guess.drawn, token == guess.likeliest
        self.n_judged += 1
        self.n_drawn_right += drawn
        self.n_likeliest_right += likeliest
        if guess.drawn == guess.likeliest:
            return
        self._advantage.observe(drawn - likeliest)
        if abs(self._advantage.value) > MARGIN:
            self.likeliest = self._advantage.value < 0.0
