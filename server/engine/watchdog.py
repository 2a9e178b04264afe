"""Detect an engine thread that makes no progress while there is work."""

from __future__ import annotations

import math
import time

# Without a finished step, before health tells; half: slow steps look stuck, twice: told late.
STEP_STUCK_S = 60.0
LOOK_S = 1.0  # at most, that counts between two looks: a process that was stopped and goes on is not stuck


class Watchdog:
    """Detects an engine thread that makes no progress while work is pending.

    It sleeps before the first step, while models warm up, and after the last one, while conversations are
    saved.
    """

    def __init__(self, limit_s: float | None = None) -> None:
        """Begin; the engine is given up after limit_s without a finished step, never if None."""
        self.clock = time.monotonic
        self._limit_s = limit_s or math.inf
        self._n_begun = self._n_seen = 0
        self._looked_at = 0.0
        self._silent_s = 0.0

    def step(self) -> None:
        """Note, on the engine's thread, that a step begins, so the last one has finished."""
        self._n_begun += 1

    def sleep(self) -> None:
        """Stop watching; called on the engine's thread after the last step."""
        self._n_begun = 0

    def look(self, work: bool) -> None:
        """Check for progress; called on the event loop a few times a second. `work`: there is some."""
        now = self.clock()
        passed, self._looked_at = min(now - self._looked_at, LOOK_S), now
        waits = work and self._n_begun and self._n_begun == self._n_seen
        self._n_seen, self._silent_s = self._n_begun, self._silent_s + passed if waits else 0.0

    @property
    def complaint(self) -> str | None:
        """Return a message if no step has finished for long, else None."""
        told = self._silent_s > min(STEP_STUCK_S, self._limit_s)
        return f"no step of the model has finished for {self._silent_s:.0f} s" if told else None

    @property
    def gives_up(self) -> bool:
        return self._silent_s > self._limit_s
