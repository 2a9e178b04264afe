"""Does a drafter on this machine help more than it hurts? Tried out now and then. Pure.

A drafter that shares cores or memory bandwidth with the lead makes every step slower, used or not, which no
count of accepted tokens shows. So its guesses are given up for a few steps, and the rates compared.
"""

from __future__ import annotations

from dataclasses import dataclass

WARM_UP = 64  # steps before the first trial
WINDOW = 48  # steps that say how fast it is with drafters
TRIAL = 24  # steps without them
MARGIN = 1.03  # the rate without must be this much better
HOLD, MOST_HOLD = 512, 16_384  # steps until the next trial, doubled whenever the answer is the same


@dataclass(slots=True)
class _Sum:
    tokens: float = 0.0
    seconds: float = 0.0
    steps: int = 0

    def add(self, tokens: int, seconds: float, window: int) -> None:
        keep = 1.0 - 1.0 / window if self.steps >= window else 1.0
        self.tokens = keep * self.tokens + tokens
        self.seconds = keep * self.seconds + seconds
        self.steps += 1

    @property
    def rate(self) -> float:
        return self.tokens / self.seconds if self.seconds > 0.0 else 0.0


class Trial:
    """Tells after each step whether drafters on this machine shall go on."""

    def __init__(self) -> None:
        self.on = True
        self._with, self._without = _Sum(), _Sum()
        self._left = WARM_UP
        self._hold = HOLD
        self._deciding = False  # in the middle of a trial of the other state

    def step(self, tokens: int, seconds: float) -> bool:
        """One step committed so many tokens in so many seconds. Returns the new state."""
        (self._with if self.on else self._without).add(tokens, seconds, WINDOW)
        self._left -= 1
        if self._left > 0:
            return self.on
        if not self._deciding:
            self._try_other()
        else:
            self._decide()
        return self.on

    def _try_other(self) -> None:
        self.on = not self.on
        self._deciding = True
        self._left = WINDOW if self.on else TRIAL
        if self.on:
            self._with = _Sum()
        else:
            self._without = _Sum()

    def _decide(self) -> None:
        """A trial is over: keep the state of before, or change for good."""
        tried = self.on
        best = self._without.rate <= MARGIN * self._with.rate
        changed = best == tried
        self._hold = HOLD if changed else min(2 * self._hold, MOST_HOLD)
        self.on, self._deciding, self._left = best, False, self._hold
