"""Read the log of a reply in Redis, which another process may still write."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Protocol

from server.errors import LostReplyError, OtherEventsError
from server.replies.redis_names import END, EVENTS, entry_id, of_entry
from server.replies.reply_log import EVENT_END, UNSTORED, LogReader, ReplyLog, without_first

DISTANT_POLL_S = 0.05  # seconds between two polls of another lead's log; people notice delays of 0.1 s

Entry = tuple[bytes, dict[bytes, bytes]]


class Entries(Protocol):
    draining: bool
    """True once this process ends, so that readers must connect to another one."""

    async def entries(self, salt: str, id: str, start: str) -> list[Entry]:
        """Return the next entries of a log, in order; none if the log has no further ones.

        Args:
            salt: Salt of the reply's owner (Owner).
            id: The reply's id.
            start: The least id of an entry to return. A "(" before the id excludes it, as in Redis's command
                XRANGE.
        """
        ...

    async def is_written(self, salt: str, id: str) -> bool:
        """Return True while the log may still grow."""
        ...


class DistantLog:
    """Implements LogReader for a log in Redis."""

    def __init__(self, store: Entries, salt: str, id: str) -> None:
        self._store = store
        self._salt = salt
        self._id = id

    async def events(self, after: int) -> AsyncIterator[bytes]:
        if after >= UNSTORED:
            raise OtherEventsError
        start, gone = f"({entry_id(0, after + 1)}", False
        while not self._store.draining:
            entries = await self._store.entries(self._salt, self._id, start)
            for id, fields in entries:
                start = f"({id.decode()}"
                if END in fields:
                    return
                chunk, n_events = fields.get(EVENTS, b""), of_entry(id)[1]
                if n_events > after + 1:  # entries of a later term may repeat events
                    yield without_first(chunk, max(0, after + 1 - n_events + chunk.count(EVENT_END)))
                    after = n_events - 1
            if entries:
                gone = False
            elif gone:
                raise LostReplyError
            elif await self._store.is_written(self._salt, self._id):
                await asyncio.sleep(DISTANT_POLL_S)
            else:
                gone = True  # unless it ended meanwhile, which the next poll finds


class MovingLog:
    """Implements LogReader for a log of this process that another process may continue while it is read."""

    def __init__(self, here: ReplyLog, there: LogReader) -> None:
        self._here = here
        self._there = there

    async def events(self, after: int) -> AsyncIterator[bytes]:
        async for chunk in self._here.events(after):
            after += chunk.count(EVENT_END)
            yield chunk
        if self._here.taken:
            async for chunk in self._there.events(after):
                yield chunk
