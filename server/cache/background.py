"""A thread that does one thing after another, for a thread that must not wait."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

logger = logging.getLogger("duo.cache")

MOMENT_S = 0.1  # parts of 8 MB: at least 80 MB a second, whatever else goes on,
PATIENT_S = 5.0  # or 1.6 MB, where nothing depends on it: a part takes a CPU core 15 ms or more


class Background:
    """Jobs by key, in the order they came. A job must not raise; one that does is logged, and the next one's
    turn comes. The thread is a daemon: a disk that hangs keeps nobody from exiting."""

    def __init__(self, name: str) -> None:
        self._jobs: dict[str, Callable[[], None]] = {}
        self._running: str | None = None
        self._closed = False
        self._moment_s = MOMENT_S
        self._changed = threading.Condition()
        self._free = threading.Event()
        self._free.set()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, key: str, job: Callable[[], None]) -> None:
        """A job that waits under the same key gives its place to this one. Does nothing after close."""
        with self._changed:
            if not self._closed:
                self._jobs[key] = job
                self._changed.notify_all()

    def cancel(self, key: str) -> bool:
        """Whether the job was still waiting; it will not run then."""
        with self._changed:
            return self._jobs.pop(key, None) is not None

    @property
    def open(self) -> bool:
        """Whether what runs should go on."""
        return not self._closed

    def yield_to(self, others: bool) -> None:
        """Whether somebody else needs the machine: then go_on() takes its time."""
        if others == self._free.is_set():
            (self._free.clear if others else self._free.set)()

    def hurry(self, is_so: bool) -> None:
        """How long go_on() waits for others, from its next call: MOMENT_S, as at the start, or PATIENT_S."""
        self._moment_s = MOMENT_S if is_so else PATIENT_S

    def go_on(self) -> bool:
        """What a long job asks between its parts: `open`, a moment later if somebody needs the machine."""
        self._free.wait(self._moment_s)
        return self.open

    @property
    def n_pending(self) -> int:
        """Jobs that wait or run."""
        return len(self._jobs) + (self._running is not None)

    def wait(self, timeout_s: float) -> int:
        """Until nothing is pending, or that long. Returns how many jobs are pending still."""
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while self.n_pending and self._thread.is_alive():
                if not self._changed.wait(max(0.0, deadline - time.monotonic())):
                    break
            return self.n_pending

    def close(self, timeout_s: float) -> None:
        """Drop what waits; the job that runs is waited for, within a bound."""
        with self._changed:
            self._closed = True
            self._free.set()
            self._jobs.clear()
            self._changed.notify_all()
        if self._thread is not threading.current_thread():
            self._thread.join(timeout_s)

    def _run(self) -> None:
        while (job := self._next()) is not None:
            try:
                job()
            except Exception:
                logger.exception("a job of the cache failed")
            del job  # it may hold a snapshot, and the next one may be long in coming

    def _next(self) -> Callable[[], None] | None:
        with self._changed:
            self._running = None
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._jobs or self._closed)
            if self._closed:
                return None
            self._running = next(iter(self._jobs))
            return self._jobs.pop(self._running)
