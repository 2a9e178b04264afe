"""The threads that carry snapshots to a directory and back, while their owner goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import TypeAlias

from server.cache.background import Background
from server.cache.files import DiskTier
from server.cache.record import Record

CLOSE_S = 5.0


@dataclass(frozen=True, slots=True)
class Written:
    """What became of write(). removed: whose files had to go for it."""

    key: str
    ok: bool
    removed: list[str]


@dataclass(frozen=True, slots=True)
class Fetched:
    """What became of read()."""

    key: str
    data: bytes | None


Result: TypeAlias = Written | Fetched


class Carriers:
    """One writes, another reads, so that nobody waits for a snapshot behind a backlog of writes. For one
    thread, their owner's, which finds in results() what came of it."""

    def __init__(self, disk: DiskTier, on_ready: Callable[[], None]) -> None:
        """on_ready: called from another thread after every read."""
        self._disk = disk
        self._on_ready = on_ready
        self._results: SimpleQueue[Result] = SimpleQueue()
        self.writer = Background("duo-cache-write")
        self.reader = Background("duo-cache-read")

    def results(self) -> Iterator[Result]:
        """Each once, in the order they came; ends when there is no more just now."""
        while True:
            try:
                yield self._results.get_nowait()
            except Empty:
                return

    def write(self, what: Record, replaces: tuple[str, ...]) -> None:
        """replaces: whose files go once this one is written."""
        self.writer.submit(what.name, lambda: self._write(what, replaces))

    def cancel(self, key: str) -> bool:
        """Whether it is certain that this one, which was to be written, is not."""
        return self.writer.cancel(key)

    def read(self, key: str, *, used: bool) -> None:
        self.reader.submit("load " + key, lambda: self._read(key, used))

    def touch(self, key: str) -> None:
        self.reader.submit("touch " + key, lambda: self._disk.touch(key))

    def remove(self, key: str, also: tuple[str, ...]) -> None:
        self.writer.submit("remove " + key, lambda: self._disk.remove((key, *also)))

    def close(self) -> None:
        """What has not been written by now will not be. May be called twice."""
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
