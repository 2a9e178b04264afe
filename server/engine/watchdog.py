"""Detect an engine thread that makes no progress while there is work."""

from __future__ import annotations

import math
import time

# Seconds without a finished step until /health reports it. Half: slow steps look stuck; twice: late reports.
STEP_STUCK_S = 60.0
MAX_CHECK_S = 1.0  # maximum seconds that count between two checks: a process that was suspended is not stuck


class Watchdog:
    """Detects an engine thread that makes no progress while work is pending.

    It sleeps before the first step, while models warm up, and after the last one, while conversations are
    saved.
    """

    def __init__(self, limit_s: float | None = None) -> None:
        """Begin asleep. After limit_s seconds without a finished step, gives_up is True (None: never)."""
        self.clock = time.monotonic
        self._limit_s = limit_s or math.inf
        self._n_begun = self._n_seen = 0
        self._checked_at = 0.0
        self._silent_s = 0.0

    def step(self) -> None:
        """Note, on the engine's thread, that a step begins, so the last one has finished."""
        self._n_begun += 1

    def sleep(self) -> None:
        """Stop watching; called on the engine's thread after the last step."""
        self._n_begun = 0

    def check(self, work: bool) -> None:
        """Check for progress; called on the event loop a few times a second. `work`: True if work waits."""
        now = self.clock()
        passed, self._checked_at = min(now - self._checked_at, MAX_CHECK_S), now
        waits = work and self._n_begun and self._n_begun == self._n_seen
        self._n_seen, self._silent_s = self._n_begun, self._silent_s + passed if waits else 0.0

    @property
    def warning(self) -> str | None:
        """Return a message if no step has finished for a long time, else None."""
        told = self._silent_s > min(STEP_STUCK_S, self._limit_s)
        return f"no step of the model has finished for {self._silent_s:.0f} s" if told else None

    @property
    def gives_up(self) -> bool:
        return self._silent_s > self._limit_s
