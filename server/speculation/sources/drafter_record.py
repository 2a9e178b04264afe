"""What a lead knows of one drafter, and how much it takes from it."""

from __future__ import annotations

import logging
import math
from collections import Counter
from dataclasses import dataclass, field
from operator import attrgetter

from server.speculation.wire.presence import Presence

logger = logging.getLogger("duo.drafters")

MAX_RATE = 4000  # messages per second of one drafter; what is above is dropped
# Tokens per second of sessions that it is told anew, a megabyte. Half: half as many.
RESENT_TOKENS_PER_S = 256_000
TELL_S = 60.0  # at least, between two lines of the log that say that a drafter rests
N_ASSIGNED = attrgetter("n_assigned")  # of a DrafterRecord; any(map(N_ASSIGNED, records)) runs in C


@dataclass(slots=True)
class DrafterRecord:
    """join: a number for each time that one joins; refusal: why it is not used, None when it is. td_us: of a
    guess, by its latest message. n_window: messages of the second that ends at `until`; n_told: tokens that
    it was told anew in it; warned: that these messages are too many. rests: why it rests, empty if it does
    not. rest_told: the log tells that, since rest_told_at."""

    join: int
    presence: Presence
    refusal: str | None
    counts: Counter[str] = field(default_factory=Counter[str])
    td_us: int = 0
    n_assigned: int = 0
    rests: str = ""
    until: int = 0
    n_window: int = 0
    n_told: int = 0
    warned: bool = False
    rest_told_at: float = -math.inf
    rest_told: bool = False

    @property
    def guess_s(self) -> float:
        """Seconds of a guess: by its latest message, before that by its presence; 0 if unknown."""
        return (self.td_us or self.presence.td_us) / 1e6

    @property
    def resting(self) -> bool:
        return bool(self.rests)

    @property
    def is_full(self) -> bool:
        """Whether it has as many sessions as it is willing to draft for."""
        return self.n_assigned >= self.presence.capacity

    @property
    def is_free(self) -> bool:
        """Whether another session may be assigned to it."""
        return not self.refusal and not self.resting and not self.is_full

    def within_rate(self, at: float) -> bool:
        """Whether one more message of it is taken in, which arrived at this second."""
        if at >= self.until:
            self.until, self.n_window, self.n_told, self.warned = int(at) + 1, 0, 0, False
        self.n_window += 1
        if self.n_window < MAX_RATE:
            return True
        if not self.warned:
            self.warned = True
            logger.warning("drafter %s sends too much: ignored for a moment", self.presence.id)
        return False

    def may_tell(self, n_tokens: int) -> bool:
        """Whether a session of n_tokens may be told anew in this second, since a few bytes ask for
        megabytes. One always may."""
        within = self.n_told < RESENT_TOKENS_PER_S
        self.n_told += n_tokens
        return within

    def tell_rest(self, now: float, *, quietly: bool) -> None:
        """Log that the drafter rests, at most once in TELL_S seconds, or that it goes on. quietly: this
        happens often."""
        tells = self.rest_told
        if self.resting:
            tells = not quietly and now - self.rest_told_at >= TELL_S
            self.rest_told_at = now if tells else self.rest_told_at
        self.rest_told = self.resting and tells
        level, said = (
            logging.INFO if tells else logging.DEBUG,
            f"rests: {self.rests}" if self.rests else "goes on",
        )
        logger.log(level, "drafter %s %s", self.presence.id, said)
