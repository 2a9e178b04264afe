"""The log of one reply: its server-sent events, which any number of connections read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Protocol

EVENT_END = b"\n\n"
"""Ends a server-sent event, and occurs nowhere else in a stream."""

# Chunks that a reader gets at once. With all: 100 idle readers of a log of 14 MB took 1.8 GB.
# Half: a reader that begins late takes twice as many turns of the event loop.
JOINED_CHUNKS = 256


class LogReader(Protocol):
    """A log that can be read."""

    def events(self, after: int) -> AsyncIterator[bytes]:
        """Yield the events after the one with the sequence number `after`, until the reply ends.

        Args:
            after: -1 for all events; the first event of a log has the number 0.

        Raises:
            LostReplyError: The log breaks off: its writer is gone.
            StoreError: The store does not answer.
        """
        ...


class ReplyLog:
    """Implements LogReader for a reply that is written by this process. For the event loop only."""

    def __init__(self) -> None:
        self.chunks: list[bytes] = []
        self.last: list[int] = []  # number of the last event of each chunk, appended after the chunk
        self.n_events = 0
        self.n_bytes = 0
        self.ended = False
        self.lost = False  # True once the store has lost a part of it
        self._readers: list[asyncio.Future[None]] = []

    def append(self, chunk: bytes) -> None:
        """Add a chunk that consists of one or more whole events."""
        self.n_events += chunk.count(EVENT_END)
        self.n_bytes += len(chunk)
        self.chunks.append(chunk)
        self.last.append(self.n_events - 1)
        self._tell()

    def end(self) -> None:
        """End the log: readers stop after its last event."""
        self.ended = True
        self._tell()

    async def events(self, after: int) -> AsyncIterator[bytes]:
        at = 0
        while True:
            while at < len(self.chunks) and self.last[at] <= after:
                at += 1
            if at < len(self.chunks):
                ready, first = self.chunks[at : at + JOINED_CHUNKS], self.last[at - 1] + 1 if at else 0
                at += len(ready)
                last = self.last[at - 1]  # before the yield, during which more may be appended
                yield without_first(b"".join(ready), after + 1 - first)
                after = last
            elif self.ended:
                return
            else:
                await self._growth()

    async def begun(self) -> None:
        """Wait until the log has an event, or has ended without one."""
        while not (self.chunks or self.ended):
            await self._growth()

    async def _growth(self) -> None:
        waits: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._readers.append(waits)
        try:
            await waits
        finally:
            if waits in self._readers:
                self._readers.remove(waits)

    def _tell(self) -> None:
        waiting, self._readers = self._readers, []
        for one in waiting:
            if not one.done():
                one.set_result(None)


def without_first(chunk: bytes, n: int) -> bytes:
    """Return a chunk without its first n events."""
    at = 0
    for _ in range(n):
        at = chunk.index(EVENT_END, at) + len(EVENT_END)
    return chunk[at:]


async def bytes_from(log: LogReader, start: int) -> AsyncIterator[bytes]:
    """Yield a log's bytes from the offset `start` on. Raises what the log's events() raises."""
    at = 0
    async for chunk in log.events(-1):
        if at + len(chunk) > start:
            yield chunk[max(0, start - at) :]
        at += len(chunk)
