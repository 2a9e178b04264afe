"""What guesses of a draft model in the lead bring each of several sessions. Pure."""

from __future__ import annotations

from server.estimators import Ratio

# Of the past, per step: the last 50 count. Off by two: half, one text decides; twice, changes take 100 steps.
GAIN_KEEP = 0.98
# Steps after which a gain counts. Off by two: half, luck decides; twice, more prompts are read in vain.
FEW = 8.0


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
