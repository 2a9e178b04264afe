"""Measure properties of a lead's model on a CPU while no request waits.

A lead begins to serve at once, with times that an earlier start kept, or with those of a few decodes. The
rest is measured here, in a small context of the same weights. When a request comes, the measurement ends
before its next decode, and is tried again later. All attempts together take a bounded time, and keep no
memory.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence

from server.llama.backend import Batch, Logits
from server.llama.context import LlamaContext
from server.llama.mapped_files import return_freed
from server.stop_signals import leave_if_requested

logger = logging.getLogger("duo.lead")

# Seconds without a reply before a measurement begins, and between checks for a running reply. Half: a user
# who opens the page and types at once waits for a decode of the measurement; twice: it begins 2 s later.
QUIET_S = 2.0
POLL_S = 0.1
# Maximum seconds of all attempts at all measurements: three times what these take (CALIBRATION_S of
# calibration.py, BUDGET_S of attention_times.py). Half: with a client that asks every few seconds none
# finishes; twice: such a lead computes for a minute though nobody waits.
MEASURED_S = 30.0

Measurement = Callable[[Callable[[], LlamaContext]], None]
"""Measures with contexts that its argument makes, without a model. May raise InterruptedMeasuringError."""


class InterruptedMeasuringError(Exception):
    """The measurement must end: a request came, the time is up, or the lead is ending."""


class _YieldingContext(LlamaContext):
    """A context that calls check() before each decode."""

    def __init__(self, check: Callable[[], None]) -> None:
        self._check = check

    def start(self, batch: Batch) -> Callable[[], Logits]:
        self._check()
        return super().start(batch)


class IdleMeasuring:
    """Carries out measurements on its own threads, one after the other, until close()."""

    def __init__(self, is_busy: Callable[[], bool], measurements: Sequence[Measurement]) -> None:
        """Prepare; nothing runs before start().

        Args:
            is_busy: Returns True while a reply runs or waits. Called from another thread.
            measurements: What to measure, in this order.
        """
        self._is_busy = is_busy
        self._left = list(measurements)
        self._left_s = MEASURED_S  # seconds left for all attempts
        self._until = 0.0  # monotonic time at which the running attempt must end
        self._ending = threading.Event()
        self._keeper = threading.Thread(target=self._measure_when_idle, name="duo-measuring", daemon=True)

    def start(self) -> None:
        """Begin to wait for idle moments."""
        self._keeper.start()

    def close(self) -> None:
        """Interrupt the running measurement, and wait for its end. After that the model may be freed."""
        self._ending.set()
        if self._keeper.ident is not None:
            self._keeper.join()

    def _measure_when_idle(self) -> None:
        while self._left and self._left_s > 0 and self._wait_until_quiet():
            # each attempt has its own thread, so that llama.cpp's worker threads end with it
            attempt = threading.Thread(target=self._attempt_next, name="duo-measuring-once")
            self._until = time.monotonic() + self._left_s
            attempt.start()
            attempt.join()
            self._left_s = self._until - time.monotonic()
            return_freed()

    def _wait_until_quiet(self) -> bool:
        """Wait for QUIET_S without a reply. Returns False if the lead ends first."""
        quiet_s = 0.0
        while quiet_s < QUIET_S:
            if self._ending.wait(POLL_S):
                return False
            quiet_s = 0.0 if self._is_busy() else quiet_s + POLL_S
        return True

    def _attempt_next(self) -> None:
        try:
            self._left[0](lambda: _YieldingContext(self._check))
        except InterruptedMeasuringError:
            return  # tried again in the next idle moment
        except Exception:
            logger.exception("a measurement in an idle moment failed")
        self._left.pop(0)

    def _check(self) -> None:
        leave_if_requested()
        if self._ending.is_set() or self._is_busy() or time.monotonic() > self._until:
            raise InterruptedMeasuringError
