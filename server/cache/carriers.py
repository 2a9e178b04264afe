"""Threads that write snapshots to a directory and read them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue

from server.cache.files import DiskTier
from server.cache.record import Record

logger = logging.getLogger("duo.cache")

MOMENT_S = 0.1  # maximum wait per 8 MB of an urgent job for a busy model: 80 MB/s. Half: 160; twice: 40
PATIENT_S = 5.0  # maximum wait per 8 MB of other jobs: 5 minutes for 512 MB. Half: 2.5; twice: 10
# Seconds for each of two threads to end its job at shutdown; a part of a job takes ms. Twice: closing takes
# 20 s if a disk hangs.
CARRIER_CLOSE_S = 5.0


class Background:
    """A thread that runs queued jobs one after the other. Each job has a key.

    An exception of a job is logged, and the next job runs. The thread is a daemon: a disk that hangs does not
    keep the process alive.
    """

    def __init__(self, name: str) -> None:
        self._jobs: dict[str, Callable[[], None]] = {}
        self._running: str | None = None
        self.open = True  # False: the running job should end
        self._moment_s = MOMENT_S
        self._changed = threading.Condition()
        self._free = threading.Event()
        self._free.set()
        self._thread = threading.Thread(target=self._run_jobs, name=name, daemon=True)
        self._thread.start()

    def submit(self, key: str, job: Callable[[], None]) -> None:
        """Queue a job; it replaces a waiting job with this key. Does nothing after close()."""
        with self._changed:
            if self.open:
                self._jobs[key] = job
                self._changed.notify_all()

    def cancel(self, key: str) -> bool:
        """Drop a waiting job; return False if there is none, because it runs or has run."""
        with self._changed:
            return self._jobs.pop(key, None) is not None

    def yield_to(self, busy: bool) -> None:
        """Set whether the model is busy; while it is, go_on() waits."""
        if busy == self._free.is_set():
            (self._free.clear if busy else self._free.set)()

    def hurry(self, urgent: bool) -> None:
        """Limit each wait of go_on() to MOMENT_S if urgent, else to PATIENT_S. A new thread is urgent."""
        self._moment_s = MOMENT_S if urgent else PATIENT_S

    def go_on(self) -> bool:
        """Wait while the model is busy, within the limit of hurry(). Returns False once closed, else True.

        A long job calls this between its parts, and ends early if the result is False.
        """
        self._free.wait(self._moment_s)
        return self.open

    @property
    def n_pending(self) -> int:
        """Return the number of jobs that wait or run."""
        return len(self._jobs) + (self._running is not None)

    def wait(self, timeout_s: float) -> int:
        """Wait until no job is pending, at most timeout_s; return the number of jobs still pending."""
        with self._changed:
            self._changed.wait_for(lambda: not (self.n_pending and self._thread.is_alive()), timeout_s)
            return self.n_pending

    def close(self, timeout_s: float) -> None:
        """Drop waiting jobs, and wait at most timeout_s for the running one."""
        with self._changed:
            self.open = False
            self._free.set()
            self._jobs.clear()
            self._changed.notify_all()
        if self._thread is not threading.current_thread():
            self._thread.join(timeout_s)

    def _run_jobs(self) -> None:
        while (job := self._next_job()) is not None:
            try:
                job()
            except Exception:
                logger.exception("saving or loading a conversation failed")
            del job  # it may hold a snapshot, and the next job may not come for long

    def _next_job(self) -> Callable[[], None] | None:
        with self._changed:
            self._running = None
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._jobs or not self.open)
            if not self.open:
                return None
            self._running = next(iter(self._jobs))
            return self._jobs.pop(self._running)


class Carriers:
    """A thread that writes and a thread that reads, so that reads do not wait for writes.

    Call its methods from one thread only.
    """

    def __init__(self, disk: DiskTier, on_ready: Callable[[], None]) -> None:
        """Start both threads. The reading thread calls on_ready after every read."""
        self._disk = disk
        self._on_ready = on_ready
        self._reports: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self.writer = Background("duo-cache-write")
        self.reader = Background("duo-cache-read")

    def run_reports(self) -> None:
        """Call the `report` functions of all jobs that have finished since the last call, in order."""
        while True:
            try:
                report = self._reports.get_nowait()
            except Empty:
                return
            report()

    def write(
        self, what: Record, replaces: tuple[str, ...], report: Callable[[bool, list[str]], None]
    ) -> None:
        """Write a record in the background.

        Args:
            what: The record.
            replaces: Keys whose files are removed once the record is written.
            report: Called by run_reports() with True if the record is on disk, and the keys of files that
                were removed to make room.
        """

        def job() -> None:
            ok, removed = False, list[str]()
            try:
                ok, removed = self._disk.write(what, self.writer.go_on)
                if ok:
                    self._disk.remove(replaces)
            finally:
                self._reports.put(lambda: report(ok, removed))

        self.writer.submit(what.name, job)

    def read(self, key: str, report: Callable[[bytes | None], None], *, used: bool) -> None:
        """Read a file in the background.

        Args:
            key: The file's key.
            report: Called by run_reports() with the payload; None if the file is missing or unusable.
            used: True: count this as a use of the file.
        """

        def job() -> None:
            data: bytes | None = None
            try:
                data = self._disk.read(key, used=used)
            finally:
                self._reports.put(lambda: report(data))
            if self.reader.open:
                self._on_ready()

        self.reader.submit("load " + key, job)

    def touch(self, key: str) -> None:
        self.reader.submit("touch " + key, lambda: self._disk.touch(key))

    def remove(self, key: str, also: tuple[str, ...]) -> None:
        self.writer.submit("remove " + key, lambda: self._disk.remove((key, *also)))

    def close(self) -> None:
        """Drop queued writes. May be called twice."""
        for thread in (self.writer, self.reader):
            thread.close(CARRIER_CLOSE_S)
