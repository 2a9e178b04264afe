"""How much time of a process its inbox may take, so that a flood does not slow it."""

from __future__ import annotations

import logging

MOST_S = 0.025
"""Processor time of reading in one beat, without what a message takes that was waited for: a tenth of a core,
5,000 to 12,000 messages a second. Beyond it the process rests. Half: eight busy drafters could be cut off;
twice: a flood costs twice as much."""
MOST_BEHIND = 8  # reads of a beat that all left some for the next. Half: a process that lags rests sooner
RESTS = (4, 32)  # beats: a second at first, 8 if it is no better then. Half: a flood costs twice as much

logger = logging.getLogger("duo.bus")


class Intake:
    """flooded: nothing shall be read before the next beat, and what comes meanwhile is to be dropped."""

    def __init__(self) -> None:
        self._spent_s = 0.0
        self._n_reads = 0
        self._behind = True  # every read of this beat left some
        self._rest = 0  # beats, of the latest rest
        self._left = 0  # of it

    @property
    def flooded(self) -> bool:
        return self._left > 0 or self._spent_s > MOST_S

    def took(self, seconds: float, n: int, *, full: bool) -> None:
        """A read of n messages took this much processor time. full: there may be more to read. The first one
        was waited for: one drafter that sends 1,000 a second, read one by one, is no flood, though that takes
        more than a tenth of a core."""
        self._spent_s += seconds * (n - 1) / n if n > 1 else 0.0
        self._n_reads += 1
        self._behind = self._behind and full

    def beat(self) -> None:
        """A beat ended."""
        if self._left:
            self._left -= 1
        elif self._spent_s > MOST_S or (self._behind and self._n_reads > MOST_BEHIND):
            if not self._rest:
                logger.warning(
                    "more messages arrive than can be right: they are dropped until there are fewer"
                )
            self._rest = self._left = min(max(2 * self._rest, RESTS[0]), RESTS[1])
        elif self._rest:
            logger.info("messages are read again")
            self._rest = 0
        self._spent_s, self._n_reads, self._behind = 0.0, 0, True
