"""How long the engine's thread has not come round though there is work."""

from __future__ import annotations

import math
import time

# Without a finished step, before health tells; half: slow steps look stuck, twice: told late.
STEP_STUCK_S = 60.0
LOOK_S = 1.0  # at most, that counts between two looks: a process that was stopped and goes on is not stuck


class Watchdog:
    """Detects an engine thread that makes no progress while work is pending.

    Asleep before the first step, while models get warm, and after the last one, while conversations are
    saved.
    """

    def __init__(self, limit_s: float | None = None) -> None:
        """limit_s: without a finished step, before the engine is given up; None: never."""
        self.clock = time.monotonic
        self._limit_s = limit_s or math.inf
        self._n_begun = self._n_seen = 0
        self._looked_at = 0.0
        self._silent_s = 0.0

    def step(self) -> None:
        """On the engine's thread: a step begins, so the one before has finished."""
        self._n_begun += 1

    def sleep(self) -> None:
        """On the engine's thread, after the last step."""
        self._n_begun = 0

    def look(self, work: bool) -> None:
        """On the event loop, some times a second. work: whether there is any."""
        now = self.clock()
        passed, self._looked_at = min(now - self._looked_at, LOOK_S), now
        waits = work and self._n_begun and self._n_begun == self._n_seen
        self._n_seen, self._silent_s = self._n_begun, self._silent_s + passed if waits else 0.0

    @property
    def complaint(self) -> str | None:
        """That no step has finished for long, if so."""
        told = self._silent_s > min(STEP_STUCK_S, self._limit_s)
        return f"no step of the model has finished for {self._silent_s:.0f} s" if told else None

    @property
    def gives_up(self) -> bool:
        return self._silent_s > self._limit_s
