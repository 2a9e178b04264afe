"""What guesses of a draft model in the lead bring: each of several sessions, and a reply alone. Pure."""

from __future__ import annotations

import math

from server.estimators import Ratio, Smoothed
from server.speculation.gating.credit import LOSS

# Of the past, per step: the last 50 count. Off by two: half, one text decides; twice, changes take 100 steps.
GAIN_KEEP = 0.98
# Steps after which a gain counts. Off by two: half, luck decides; twice, more prompts are read in vain.
FEW = 8.0
# Of one reply: the last 16 count. Half: a few hard texts in a row end tries; twice: a model that does not pay
# is tried in 22 replies, not 11.
REPLY_WEIGHT = 1 / 16
# Tokens that are hoped for before the first reply: where each loses 5, the 11th is the last that is tried.
# Half: the 7th; twice: the 17th.
HOPED = 5.0


class Gain:
    """What guesses brought a session in a step of late."""

    def __init__(self) -> None:
        self._surplus = Ratio(GAIN_KEEP)  # tokens beyond those that their time was worth, by session steps
        self._extra = Ratio(GAIN_KEEP)  # tokens beyond one

    def observe(self, n_extra: float, n_lost: float, n_sessions: int) -> None:
        """n_sessions sessions had n_extra tokens more, in a time that was worth n_lost."""
        self._surplus.observe(n_extra - n_lost, n_sessions)
        self._extra.observe(n_extra, n_sessions)

    @property
    def is_known(self) -> bool:
        return self._surplus.weight >= FEW

    def tokens(self, length: float) -> float:
        """Gained by a reply of this length."""
        return self._surplus.value * length / (1.0 + self._extra.value)


class ReplyGain:
    """What guesses brought replies that were alone: tokens beyond those that plain steps make in the time
    that reading, guessing and verifying took. Where that is a loss, the next tries wait until it is LOSS of
    all tokens."""

    def __init__(self) -> None:
        self._mean = Smoothed(REPLY_WEIGHT, HOPED)
        self._net = 0.0  # of the reply that goes on
        self._left = 0.0  # tokens until the next tries

    def observe(self, n_extra: float, n_lost: float) -> None:
        """A step with guesses had n_extra tokens more, in a time that was worth n_lost."""
        self._net += n_extra - n_lost

    def ended(self, n_tokens: int) -> None:
        """A reply of n_tokens tokens has ended; it tells nothing if nothing was guessed for it."""
        self._left = max(0.0, self._left - n_tokens)
        if self._net:
            self._mean.observe(self._net)
            self._left = max(0.0, -self._mean.value) / LOSS
        self._net = 0.0

    @property
    def wait(self) -> int:
        """Tokens of the next reply before guesses are tried for it."""
        return math.ceil(self._left)
