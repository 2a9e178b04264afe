"""Which way of guessing is right more often where the lead samples: the shared noise or the largest logit.
Pure."""

from __future__ import annotations

from drafters.guess import Guess

SMOOTHING = 1 / 64  # of the difference, over positions where the two differ
MARGIN = 0.1  # how much better the other must be before it is taken


class Rule:
    """Begins with the shared noise, which is the better one where the distributions are flat and alike.
    Counts are of all positions judged."""

    def __init__(self) -> None:
        self.likeliest = False  # guess the largest logit
        self.n_judged = 0
        self.n_drawn_right = 0
        self.n_likeliest_right = 0
        self._advantage = 0.0  # of the noise

    def judge(self, guess: Guess, token: int) -> None:
        """What the lead chose where this guess was made."""
        drawn, likeliest = token == guess.drawn, token == guess.likeliest
        self.n_judged += 1
        self.n_drawn_right += drawn
        self.n_likeliest_right += likeliest
        if guess.drawn == guess.likeliest:
            return
        self._advantage += (drawn - likeliest - self._advantage) * SMOOTHING
        if abs(self._advantage) > MARGIN:
            self.likeliest = self._advantage < 0.0
