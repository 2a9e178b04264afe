"""A drafter as a lead knows it, and limits on what it may send."""

from __future__ import annotations

import logging
import math
from collections import Counter
from dataclasses import dataclass, field
from operator import attrgetter

from server.speculation.wire.messages import MAX_MESSAGE_TOKENS
from server.speculation.wire.presence import Presence

logger = logging.getLogger("duo.drafters")

MAX_RATE = 4000  # messages per second of one drafter; further messages are dropped
# Maximum tokens per second that are resent to a drafter: a megabyte. Half: lost sessions may be resent half
# as fast.
RESENT_TOKENS_PER_S = MAX_MESSAGE_TOKENS // 4
# Frequent reasons to pause, which are logged at DEBUG
WAITS = "until it is known what steps take without it"
JOINS = "another one joins"
TELL_S = 60.0  # minimum seconds between two lines of the log that say that a drafter pauses
N_ASSIGNED = attrgetter("n_assigned")  # of a DrafterRecord; any(map(N_ASSIGNED, records)) runs in C


@dataclass(slots=True)
class DrafterRecord:
    """One drafter on the bus."""

    join: int  # serial number of its join; a drafter that joins again gets a new one
    presence: Presence
    refusal: str | None  # why the drafter is not used; None: it is used
    counts: Counter[str] = field(default_factory=Counter[str])
    td_us: int = 0  # microseconds of a guess by its latest message
    n_assigned: int = 0
    rests: str = ""  # why the drafter is paused; empty: it is not paused
    until: int = 0  # when the present window of one second ends
    n_window: int = 0  # messages in the window
    n_sent: int = 0  # tokens resent to it in the window
    warned: bool = False  # the log says that its messages are too many
    pause_logged_at: float = -math.inf  # when the log last said that it is paused
    pause_logged: bool = False  # the log says that it is paused

    @property
    def guess_s(self) -> float:
        """Return the seconds of a guess as the drafter last reported them; 0 if unknown."""
        return (self.td_us or self.presence.td_us) / 1e6

    @property
    def paused(self) -> bool:
        return bool(self.rests)

    @property
    def is_full(self) -> bool:
        """True if the drafter has as many sessions as it accepts."""
        return self.n_assigned >= self.presence.capacity

    @property
    def is_free(self) -> bool:
        """True if the drafter may get another session."""
        return not self.refusal and not self.paused and not self.is_full

    def within_rate(self, at: float) -> bool:
        """Count a message that arrived at time `at` (seconds); return True if the rate limit allows it."""
        if at >= self.until:
            self.until, self.n_window, self.n_sent, self.warned = int(at) + 1, 0, 0, False
        self.n_window += 1
        if self.n_window < MAX_RATE:
            return True
        if not self.warned:
            self.warned = True
            logger.warning(
                "drafter %s sends too many messages: those above the limit are dropped", self.presence.id
            )
        return False

    def may_resend_tokens(self, n_tokens: int) -> bool:
        """Return True if a session of n_tokens may be resent to the drafter now, and count its tokens.

        At most RESENT_TOKENS_PER_S are resent in a second, because a drafter's request of a few bytes causes
        megabytes. The last session in a second may exceed the limit, so that even a session of more tokens
        than that can be resent.
        """
        within = self.n_sent < RESENT_TOKENS_PER_S
        self.n_sent += n_tokens
        return within

    def pause(self, reason: str, now: float) -> bool:
        """Note that the drafter pauses, or resumes if the reason is empty; return True if that is a change.

        A pause is logged at INFO, except for two cases at DEBUG: its reason is a frequent one, or another
        pause was logged at INFO within TELL_S seconds before `now`. The end of a pause is logged at the level
        of its beginning.
        """
        changes, self.rests = self.paused != bool(reason), reason
        if not changes:
            return False
        tells = self.pause_logged
        if self.paused:
            tells = reason not in (WAITS, JOINS) and now - self.pause_logged_at >= TELL_S
            self.pause_logged_at = now if tells else self.pause_logged_at
        self.pause_logged = self.paused and tells
        level, said = (
            logging.INFO if tells else logging.DEBUG,
            f"rests: {self.rests}" if self.rests else "goes on",
        )
        logger.log(level, "drafter %s %s", self.presence.id, said)
        return True
