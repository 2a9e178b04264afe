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
    """Implements LogReader for a reply that is written by this process. For the event loop only.

    Readers of a guarded log get only what the store has acknowledged. So if this process dies, the one that
    continues the reply knows every event that a client has seen.
    """

    def __init__(self, *, guarded: bool = False) -> None:
        self.chunks: list[bytes] = []
        self.states: list[bytes] = []  # by chunk: what going on after it needs, as JSON; empty: nothing new
        self.last: list[int] = []  # number of the last event of each chunk, appended after the two above
        self.guarded = guarded
        self._n_shown = 0  # chunks of a guarded log that readers may have
        self.n_events = 0
        self.n_bytes = 0
        self.ended = False
        self.lost = False  # True once the store has lost a part of it
        self.left = False  # True once this process has left it to others
        self.taken = False  # True once another process writes it
        self._readers: list[asyncio.Future[None]] = []

    def append(self, chunk: bytes, state: bytes = b"") -> None:
        """Add a chunk that consists of one or more whole events."""
        self.n_events += chunk.count(EVENT_END)
        self.n_bytes += len(chunk)
        self.chunks.append(chunk)
        self.states.append(state)
        self.last.append(self.n_events - 1)
        if not self.guarded:
            self._tell()

    def show_chunks(self, n: int) -> None:
        """Give readers of a guarded log its first n chunks."""
        self._n_shown = max(n, self._n_shown)
        self._tell()

    def show_all(self) -> None:
        """Give readers all chunks from now on."""
        self.guarded = False
        self._tell()

    def leave(self) -> None:
        """Leave the log to another process: readers stop after what the store has acknowledged."""
        self.left = True
        self._tell()

    def give_way(self) -> None:
        """Stop readers and writing here, since another process now writes the log."""
        self.taken = True
        self.leave()

    def end(self) -> None:
        """End the log: readers stop after its last event."""
        self.ended = True
        self._tell()

    async def events(self, after: int) -> AsyncIterator[bytes]:
        at = 0
        while True:
            n = self._n_shown if self.guarded else len(self.chunks)
            while at < n and self.last[at] <= after:
                at += 1
            if at < n:
                end = min(n, at + JOINED_CHUNKS)
                ready, first = self.chunks[at:end], self.last[at - 1] + 1 if at else 0
                at += len(ready)
                last = self.last[at - 1]  # before the yield, during which more may be appended
                yield without_first(b"".join(ready), after + 1 - first)
                after = last
            elif self.left or (self.ended and n == len(self.chunks)):
                return
            else:
                await self._growth()

    @property
    def has_events(self) -> bool:
        """True if readers have an event."""
        return bool(self._n_shown if self.guarded else self.chunks)

    async def begun(self) -> None:
        """Wait until readers have an event, or the log has ended or been left without one."""
        while not (self.has_events or self.ended or self.left):
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
