"""The threads that write snapshots to a directory and read them."""

from __future__ import annotations

from collections.abc import Callable
from queue import Empty, SimpleQueue

from server.cache.background import Background
from server.cache.files import DiskTier
from server.cache.record import Record

CLOSE_S = 5.0  # seconds for the running job at the end: a part of a file takes far less


class Carriers:
    """One thread writes, another reads, so that no read waits behind writes. Used by one thread."""

    def __init__(self, disk: DiskTier, on_ready: Callable[[], None]) -> None:
        """on_ready: called from another thread after every read."""
        self._disk = disk
        self._on_ready = on_ready
        self._reports: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self.writer = Background("duo-cache-write")
        self.reader = Background("duo-cache-read")

    def settle(self) -> None:
        """Report, in order, what was done since the last call."""
        while True:
            try:
                report = self._reports.get_nowait()
            except Empty:
                return
            report()

    def write(
        self, what: Record, replaces: tuple[str, ...], report: Callable[[bool, list[str]], None]
    ) -> None:
        """replaces: keys whose files go once this one is written. report(whether it is, keys of the files
        that went to make room) is called by settle()."""

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
        """report(the payload, None if it is missing) is called by settle()."""

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
            thread.close(CLOSE_S)
