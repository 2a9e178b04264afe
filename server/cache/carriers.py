"""The threads that write snapshots to a directory and read them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import TypeAlias

from server.cache.background import Background
from server.cache.files import DiskTier
from server.cache.record import Record

CLOSE_S = 5.0  # seconds for the running job at the end: a part of a file takes far less


@dataclass(frozen=True, slots=True)
class Written:
    """The result of write(). removed: keys whose files went to make room."""

    key: str
    ok: bool
    removed: list[str]


@dataclass(frozen=True, slots=True)
class Fetched:
    """The result of read()."""

    key: str
    data: bytes | None


Result: TypeAlias = Written | Fetched


class Carriers:
    """One thread writes, another reads, so that no read waits behind writes. Used by one thread."""

    def __init__(self, disk: DiskTier, on_ready: Callable[[], None]) -> None:
        """on_ready: called from another thread after every read."""
        self._disk = disk
        self._on_ready = on_ready
        self._results: SimpleQueue[Result] = SimpleQueue()
        self.writer = Background("duo-cache-write")
        self.reader = Background("duo-cache-read")

    def results(self) -> Iterator[Result]:
        """Those since the last call, in order."""
        while True:
            try:
                yield self._results.get_nowait()
            except Empty:
                return

    def write(self, what: Record, replaces: tuple[str, ...]) -> None:
        """replaces: keys whose files go once this one is written."""
        self.writer.submit(what.name, lambda: self._write(what, replaces))

    def cancel(self, key: str) -> bool:
        """Take a write back. False if it may have begun."""
        return self.writer.cancel(key)

    def read(self, key: str, *, used: bool) -> None:
        self.reader.submit("load " + key, lambda: self._read(key, used))

    def touch(self, key: str) -> None:
        self.reader.submit("touch " + key, lambda: self._disk.touch(key))

    def remove(self, key: str, also: tuple[str, ...]) -> None:
        self.writer.submit("remove " + key, lambda: self._disk.remove((key, *also)))

    def close(self) -> None:
        """Drop queued writes. May be called twice."""
        for thread in (self.writer, self.reader):
            thread.close(CLOSE_S)

    def _write(self, what: Record, replaces: tuple[str, ...]) -> None:
        ok, removed = False, list[str]()
        try:
            ok, removed = self._disk.write(what, self.writer.go_on)
            if ok:
                self._disk.remove(replaces)
        finally:
            self._results.put(Written(what.name, ok, removed))

    def _read(self, key: str, used: bool) -> None:
        data: bytes | None = None
        try:
            data = self._disk.read(key, used=used)
        finally:
            self._results.put(Fetched(key, data))
        if self.reader.open:
            self._on_ready()
