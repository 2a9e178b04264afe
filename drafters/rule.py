"""Which guess is right more often where the lead samples: the shared noise's or the likeliest token. Pure."""

from __future__ import annotations

from server.estimators import Smoothed
from server.sampling.draft_token import DraftGuess

# Of a position where the two differ. Off by two: twice, the rule changes by luck; half, a lead that samples
# sharply is guessed by the worse rule for 128 such positions.
WEIGHT = 1 / 64
MARGIN = 0.1  # share of such positions by which the other must be better: as much as luck makes of equals


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
