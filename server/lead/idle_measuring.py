"""Measure decode times of a lead's model on a CPU while no request waits, then start deferred work.

A lead begins to serve at once, with times from an earlier start or from a few decodes. The other times are
measured here, in a small context of the same weights. When a request comes, the measurement ends before its
next decode, and is tried again later. All attempts together take a bounded time, and keep no memory.

Deferred work, such as preparing grammars, would take cores from a measurement, so it starts after the last
one. But it starts after a bounded time (REST_WITHIN_S) at the latest, even if measurements are left.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Protocol

from server.engine.thread import Command
from server.llama.backend import Batch, Logits
from server.llama.context import LlamaContext
from server.llama.mapped_files import return_freed

logger = logging.getLogger("duo.lead")

# Seconds without a reply before a measurement begins, and between checks for a running reply. Half: a user
# who opens the page and types at once waits for a decode of the measurement; twice: it begins 2 s later.
QUIET_S = 2.0
POLL_S = 0.1
# Maximum seconds of all attempts at all measurements: three times what the measurements take (CALIBRATION_S
# of calibration.py, BUDGET_S of attention_times.py). Half: beside a client that asks every few seconds, none
# finishes; twice: beside such a client, the lead computes for a minute though nobody waits.
MEASURED_S = 30.0
# Seconds after which deferred work starts even if the lead was never idle. Half: for a client that asks
# without a pause, grammars are prepared during an earlier reply; twice: its first grammar may wait for two
# minutes.
REST_WITHIN_S = 60.0

Measurement = Callable[[Callable[[], LlamaContext]], None]
"""Measures with contexts that its argument returns. May raise InterruptedMeasuringError."""


class InterruptedMeasuringError(Exception):
    """The measurement must end: a request came, the time is up, or the lead is ending."""


class MeasuringThread(Protocol):
    """The part of EngineThread that measurements need."""

    @property
    def is_wanted(self) -> bool:
        """Return True if the thread has other work. Safe from any thread."""
        ...

    def command(self, command: Command) -> None:
        """Call `command` on the engine's thread when it has time."""
        ...


class _YieldingContext(LlamaContext):
    """A context that calls check() before each decode."""

    def __init__(self, check: Callable[[], None]) -> None:
        self._check = check

    def start(self, batch: Batch) -> Callable[[], Logits]:
        self._check()
        return super().start(batch)


class IdleMeasuring:
    """Carries out measurements on the engine's thread, one after the other, then starts deferred work.

    It uses that thread because OpenMP keeps workers for each thread that has decoded. With more workers than
    cores, all workers sleep at every barrier. A decode of four rows passes 497 barriers without flash
    attention and 209 with it (bundled model). So, measured on another thread, all decodes seemed slow, and
    flash attention seemed to pay.
    """

    def __init__(
        self,
        engine: MeasuringThread,
        measurements: Sequence[Measurement],
        rest: Sequence[Callable[[], None]] = (),
    ) -> None:
        """Prepare; nothing runs before start().

        Args:
            engine: The engine's thread.
            measurements: What to measure, in this order.
            rest: Deferred work, called after the measurements because it takes cores from them. It is called
                on a separate thread, REST_WITHIN_S after start() at the latest.
        """
        self._engine = engine
        self._left = list(measurements)
        self._rest = list(rest)
        self._left_s = MEASURED_S  # seconds left for all attempts
        self._until = self._latest = 0.0  # monotonic times: the attempt's end, the latest start of `rest`
        self._ending = threading.Event()
        self._keeper = threading.Thread(target=self._work_when_idle, name="duo-measuring", daemon=True)

    def start(self) -> None:
        """Begin to wait for idle moments."""
        self._latest = time.monotonic() + REST_WITHIN_S
        self._keeper.start()

    def close(self) -> None:
        """Interrupt the running measurement, and wait for its end. After that the model may be freed."""
        self._ending.set()
        if self._keeper.ident is not None:
            self._keeper.join()

    def _work_when_idle(self) -> None:
        is_quiet = self._wait_until_quiet()
        while is_quiet and self._left and self._left_s > 0:
            is_quiet = self._attempt() or self._wait_until_quiet()
        if is_quiet:
            self._start_rest()

    def _wait_until_quiet(self) -> bool:
        """Wait for QUIET_S without a reply. Returns False if the lead ends first."""
        quiet_s = 0.0
        while quiet_s < QUIET_S:
            if not self._pause():
                return False
            quiet_s = 0.0 if self._engine.is_wanted else quiet_s + POLL_S
        return True

    def _pause(self) -> bool:
        """Wait for POLL_S; start deferred work if it is due. Returns False if the lead ends."""
        if self._ending.wait(POLL_S):
            return False
        if time.monotonic() > self._latest:
            self._start_rest()
        return True

    def _start_rest(self) -> None:
        while self._rest:
            try:
                self._rest.pop(0)()
            except Exception:
                logger.exception("deferred work failed")

    def _attempt(self) -> bool:
        """Try the next measurement on the engine's thread. Returns False if it has to be tried again."""
        attempt: Future[bool] = Future()
        self._until = time.monotonic() + self._left_s
        self._engine.command(lambda _: self._carry_out(attempt))
        while not attempt.done() and self._pause():
            pass
        if attempt.cancel():  # the engine has ended without it
            return False
        is_done = attempt.result()
        self._left_s = self._until - time.monotonic()
        return_freed()
        return is_done

    def _carry_out(self, attempt: Future[bool]) -> None:
        if attempt.set_running_or_notify_cancel():
            attempt.set_result(self._measure_next())

    def _measure_next(self) -> bool:
        try:
            self._check()
            self._left[0](lambda: _YieldingContext(self._check))
        except (InterruptedMeasuringError, SystemExit, KeyboardInterrupt):  # from leave_if_requested()
            return False
        except Exception:
            logger.exception("a measurement in an idle moment failed")
        self._left.pop(0)
        return True

    def _check(self) -> None:
        if self._ending.is_set() or self._engine.is_wanted or time.monotonic() > self._until:
            raise InterruptedMeasuringError
