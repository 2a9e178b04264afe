"""Keep replies in the memory of this process."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from server.errors import StoreError
from server.replies.kept import Json, KeptBounds, ResponseStore, StoredResponse
from server.replies.reply_log import LogReader, ReplyLog
from server.replies.store import Change, Kept, Orphan, Owner


class MemoryStore:
    """Implements ReplyStore. The bounds apply to each tenant separately."""

    def __init__(self, bounds: KeptBounds | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._bounds = bounds or KeptBounds()
        self._clock = clock
        self._stores: dict[str, ResponseStore] = {}  # by tenant; there are at most as many as API keys
        self._logs: dict[tuple[str, str], ReplyLog] = {}

    members: Sequence[str] | None = None

    @property
    def n_logs(self) -> int:
        return len(self._logs)

    def put(self, owner: Owner, stored: StoredResponse) -> Kept:
        log = self._logs.get((owner.salt, stored.id))
        n_beside = log.n_bytes if log else 0
        if self._store_of(owner.tenant).put(owner.salt, stored, n_beside):
            return "everywhere"
        self.forget(owner.salt, stored.id)
        return "nowhere"

    async def get(self, salt: str, id: str) -> StoredResponse | None:
        return self.found(salt, id)

    def found(self, salt: str, id: str) -> StoredResponse | None:
        """Return the response with this id, if there is one."""
        held = (store.get(salt, id) for store in self._stores.values())
        return next((one for one in held if one is not None), None)

    async def item(self, salt: str, id: str) -> Json | None:
        held = (store.item(salt, id) for store in self._stores.values())
        return next((one for one in held if one is not None), None)

    async def delete(self, owner: Owner, id: str) -> bool:
        return self.forget(owner.salt, id)

    def forget(self, salt: str, id: str) -> bool:
        """Forget a response and its log; return True if it was there."""
        self._drop_log(salt, id)
        return any(store.delete(salt, id) for store in self._stores.values())

    async def change(self, owner: Owner, id: str, change: Change) -> StoredResponse | None:
        if (stored := self.found(owner.salt, id)) is None:
            return None
        changed = change(stored)
        if len(changed.encoded()) > self._bounds.most_bytes:
            raise StoreError.full()
        self.put(owner, changed)
        return changed

    async def take_up(self, most: int) -> Sequence[Orphan]:
        """Return nothing: no reply outlives its process here."""
        return ()

    def end_readers(self) -> None:
        """Do nothing: all logs are written in this process."""

    def leave(self, salt: str, id: str) -> None:
        """Do nothing: the log is in this process's memory, so no other process could continue it."""

    def begin_log(self, owner: Owner, id: str, recipe: Json | None = None) -> ReplyLog:
        log = ReplyLog()
        self.hold_log(owner.salt, id, log)
        return log

    def hold_log(self, salt: str, id: str, log: ReplyLog) -> None:
        """Keep a log, so that held_log() finds it by this id."""
        self._logs[salt, id] = log

    def has_log(self, salt: str, id: str) -> bool:
        return (salt, id) in self._logs

    def held_log(self, salt: str, id: str) -> ReplyLog | None:
        """Return the log with this id, unless its reply has ended and is no longer kept."""
        found = self._logs.get((salt, id))
        return found if found and (not found.ended or self.found(salt, id)) else None

    async def log(self, salt: str, id: str) -> LogReader | None:
        return self.held_log(salt, id)

    async def cancel(self, salt: str, id: str) -> bool:
        """Return True if this process writes the log. The caller then cancels the reply itself."""
        return await self.is_written(salt, id)

    async def is_written(self, salt: str, id: str) -> bool:
        log = self._logs.get((salt, id))
        return log is not None and not log.ended

    async def flush(self) -> None:
        """Return at once: every put has succeeded already."""

    async def close(self) -> None:
        """Do nothing."""

    def _store_of(self, tenant: str) -> ResponseStore:
        if tenant not in self._stores:
            self._stores[tenant] = ResponseStore(self._bounds, self._drop_log, self._clock)
        return self._stores[tenant]

    def _drop_log(self, salt: str, id: str) -> None:
        self._logs.pop((salt, id), None)
