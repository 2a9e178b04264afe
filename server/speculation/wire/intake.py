"""Limit the time that a process spends on its inbox, so that a flood does not slow it."""

from __future__ import annotations

import logging

HEARTBEAT_S = 0.25  # seconds between two heartbeats, which renew a process's keys and look for its peers
MOST_S = HEARTBEAT_S / 10
"""Maximum processor seconds of reading in one interval, not counting a message that was waited for.

That is 5,000 to 12,000 messages a second; beyond it the process stops reading for a while.
With half of it, eight busy drafters could be cut off; with twice, a flood costs twice as much.
"""
MOST_BEHIND = 8  # maximum reads per interval, if all left messages unread. Half: a slow process pauses sooner
RESTS = (4, 32)  # intervals of the first and longest pause, 1 and 8 s. Half: a flood costs twice as much

logger = logging.getLogger("duo.bus")


class Intake:
    """Decides when this process stops reading its inbox, because it receives too many messages."""

    def __init__(self) -> None:
        self._spent_s = 0.0
        self._n_reads = 0
        self._behind = True  # every read of this interval left messages unread
        self._rest = 0  # length of the latest pause in intervals; 0: no pause
        self._left = 0  # intervals left of that pause

    @property
    def flooded(self) -> bool:
        """True if messages come too fast: nothing may be read before end_interval() is called again.

        Messages that arrive meanwhile must be dropped.
        """
        return self._left > 0 or self._spent_s > MOST_S

    def took(self, seconds: float, n: int, *, full: bool) -> None:
        """Count a read of n messages that took `seconds` of processor time; `full`: more may be waiting.

        One message of each read is not counted, since the reader waited for it. So a drafter whose 1,000
        messages a second are read one by one is no flood, though that takes more than a tenth of a core.
        """
        self._spent_s += seconds * (n - 1) / n if n > 1 else 0.0
        self._n_reads += 1
        self._behind = self._behind and full

    def end_interval(self) -> None:
        """End an interval of HEARTBEAT_S seconds in which reads are counted.

        If messages came too fast, the inbox is not read in the next intervals.
        """
        if self._left:
            self._left -= 1
        elif self._spent_s > MOST_S or (self._behind and self._n_reads > MOST_BEHIND):
            if not self._rest:
                logger.warning(
                    "messages arrive faster than they can be read: they are dropped until fewer come"
                )
            self._rest = self._left = min(max(2 * self._rest, RESTS[0]), RESTS[1])
        elif self._rest:
            logger.info("messages are read again")
            self._rest = 0
        self._spent_s, self._n_reads, self._behind = 0.0, 0, True
