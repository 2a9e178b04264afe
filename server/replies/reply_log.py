"""The log of one reply: its server-sent events, which any number of connections read."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from typing import Protocol

from server.errors import OtherEventsError

EVENT_END = b"\n\n"
"""Ends a server-sent event, and occurs nowhere else in a stream."""

# Maximum chunks that a reader gets at once. Without a limit, 100 idle readers of a log of 14 MB took 1.8 GB.
# Half: a reader that begins late takes twice as many turns of the event loop.
JOINED_CHUNKS = 256
UNSTORED = 1 << 30
"""Offset added to the sequence numbers of events that the store has lost; 32 bits hold the sum.

Another process may continue the reply with other events that have the former numbers.
"""
_NUMBER = re.compile(rb'(?<="sequence_number":)\d+(?=}\n\n)')


class LogReader(Protocol):
    """A log that can be read."""

    def events(self, after: int) -> AsyncIterator[bytes]:
        """Yield the events after the one with the sequence number `after`, until the reply ends.

        Args:
            after: -1 for all events; the first event of a log has the number 0.

        Raises:
            OtherEventsError: Event `after` was lost, and differs from the event of this log.
            LostReplyError: The log breaks off: its writer is gone.
            StoreError: The store does not answer.
        """
        ...


class ReplyLog:
    """Implements LogReader for a reply that is written by this process. For the event loop only.

    Readers of a guarded log get only events that the store has acknowledged. So if this process dies, the
    process that continues the reply knows every event that a client has seen.
    """

    def __init__(self, *, guarded: bool = False) -> None:
        self.chunks: list[bytes] = []
        self.states: list[bytes] = []  # by chunk: JSON needed to continue after it; empty: nothing new
        self.last: list[int] = []  # number of each chunk's last event; appended after the two lists above
        self.guarded = guarded
        self._n_shown = 0  # chunks of a guarded log that readers may have
        self.n_events = 0
        self.n_bytes = 0
        self.n_beside = 0  # bytes stored beside the events, from which another process can continue
        self.ended = False
        self.lost = False  # True once the store has lost a part of the log
        self._n_common: int | None = None  # after a loss: number of events that the stored log has too
        self.left = False  # True once this process has left the log to others
        self.taken = False  # True once another process writes the log
        self._readers: list[asyncio.Future[None]] = []

    def append(self, chunk: bytes, state: bytes = b"") -> None:
        """Add a chunk of one or more whole events; `state` is JSON needed to continue after it, if any."""
        if self._n_common is not None:
            chunk = _renumbered(chunk)
        self.n_events += chunk.count(EVENT_END)
        self.n_bytes += len(chunk)
        self.chunks.append(chunk)
        self.states.append(state)
        self.last.append(self.n_events - 1)
        if not self.guarded:
            self._tell()

    def show_chunks(self, n: int) -> None:
        """Release the first n chunks of a guarded log to readers."""
        self._n_shown = max(n, self._n_shown)
        self._tell()

    def lose(self) -> None:
        """Note that the store has lost a part of the log: from now on readers get all chunks.

        Events that readers have not got yet are renumbered, see UNSTORED.
        """
        self.lost = True
        if self.guarded:
            self.guarded = False
            at = self._n_shown
            self._n_common = self.last[at - 1] + 1 if at else 0
            self.chunks[at:] = map(_renumbered, self.chunks[at:])
            self.n_bytes = sum(map(len, self.chunks))
        self._tell()

    def _index_after(self, after: int) -> int:
        """Convert an event number, as sent to a client, to an index in this log.

        Raises:
            OtherEventsError: The client has read events that this log does not have.
        """
        if after >= UNSTORED:
            after -= UNSTORED
            if self._n_common is None or after < self._n_common:
                raise OtherEventsError
        elif self._n_common is not None and after >= self._n_common:
            raise OtherEventsError
        return after

    def leave(self) -> None:
        """Leave the log to another process: readers stop after the last acknowledged event."""
        self.left = True
        self._tell()

    def give_way(self) -> None:
        """Stop readers and writing in this process, since another process now writes the log."""
        self.taken = True
        self.leave()

    def end(self) -> None:
        """End the log: readers stop after its last event."""
        self.ended = True
        self._tell()

    async def events(self, after: int) -> AsyncIterator[bytes]:
        after, at = self._index_after(after), 0
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
        """Return True if there is an event that readers may have."""
        return bool(self._n_shown if self.guarded else self.chunks)

    async def begun(self) -> None:
        """Wait until readers may have an event, or the log has ended or been left."""
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


def _renumbered(chunk: bytes) -> bytes:
    return _NUMBER.sub(lambda found: b"%d" % (int(found[0]) + UNSTORED), chunk)


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
