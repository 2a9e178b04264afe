"""Does a drafter on this machine help more than it hurts? Tried out now and then. Pure.

A drafter that shares cores or memory bandwidth with the lead makes every step slower, used or not, which no
count of accepted tokens shows. So now and then it rests for a few steps. What these take without any guess is
what the server could do without it; if that beats what it did with it, the drafter goes on resting.
"""

from __future__ import annotations

from collections import deque
from statistics import median

WARM_UP = 64  # steps before the first trial
WINDOW = 96  # steps that say how fast it is with drafters
TRIAL = 16  # steps without them
ENOUGH = 4  # plain steps that say how fast it is without
MARGIN = 1.03  # the rate without must be this much better
HOLD, MOST_HOLD = 256, 8192  # steps until the next trial, doubled whenever the answer is the same


class Trial:
    """Tells after each step whether drafters on this machine shall go on."""

    def __init__(self) -> None:
        self.on = True
        self._with: deque[tuple[int, float]] = deque(maxlen=WINDOW)  # tokens, seconds
        self._plain: deque[float] = deque(maxlen=2 * TRIAL)  # tokens per second of plain steps at rest
        self._left = WARM_UP
        self._hold = HOLD
        self._trying = False

    def step(self, tokens: int, seconds: float, *, plain: bool) -> bool:
        """One step committed so many tokens in so many seconds, `plain`ly if without guesses. Returns whether
        drafters shall be on from now."""
        if self.on:
            self._with.append((tokens, seconds))
        elif plain and seconds > 0.0:
            self._plain.append(tokens / seconds)
        self._left -= 1
        if self._left <= 0:
            self._turn()
        return self.on

    def _turn(self) -> None:
        if not self._trying:
            self.on = not self.on
            self._trying = True
            self._left = WINDOW if self.on else TRIAL
            (self._with if self.on else self._plain).clear()
            return
        before = not self.on
        self.on = not self._is_better_without()
        self._hold = min(2 * self._hold, MOST_HOLD) if self.on == before else HOLD
        self._trying, self._left = False, self._hold

    def _is_better_without(self) -> bool:
        seconds = sum(s for _, s in self._with)
        if len(self._plain) < ENOUGH or seconds <= 0.0:
            return False  # guesses of another source fill the steps: nothing is known, nothing is lost
        return median(self._plain) > MARGIN * sum(t for t, _ in self._with) / seconds
