"""Keep replies in Redis, so that they outlive this process and other leads find them."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import redis

from server.errors import StoreError
from server.replies import log_writing, redis_documents
from server.replies.distant_log import DistantLog, Entry, MovingLog
from server.replies.kept import Json, KeptBounds, StoredResponse, decoded
from server.replies.log_writing import LogWriting, Outcome, WriteResult, Written
from server.replies.memory import MemoryStore
from server.replies.orphans import READ_ENTRIES, Orphans, TakenLog, recipe_of
from server.replies.redis_documents import RedisDocuments, size_of
from server.replies.redis_link import RedisLink
from server.replies.redis_names import ReplyNames, is_id
from server.replies.reply_log import LogReader, ReplyLog
from server.replies.store import Change, Kept, Orphan, Owner

FLUSH_TIMEOUT_S = (
    1.0  # seconds that the end of an answer waits for its puts: an outage must not delay it longer
)
CLOSE_S = 2.0  # seconds for queued commands when the lead ends: the time limit of one answer of Redis
LEASES_RENEWED_S = (
    3.0  # seconds after an outage until a missing lease shows a dead writer: others renew theirs within 1 s
)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class LeadGroup:
    """A group of leads that may continue each other's replies, and the name of this lead in it."""

    digest: str  # digest of model and options, equal for all leads of the group
    name: str  # name of this lead


class RedisStore:
    """Implements ReplyStore. Replies that Redis cannot keep are kept in this process by a MemoryStore."""

    def __init__(
        self, url: str, pool: str, bounds: KeptBounds | None = None, group: LeadGroup | None = None
    ) -> None:
        """Prepare the store; without `group` no other lead continues its replies. Raises StartupError."""
        self._bounds = bounds or KeptBounds()
        self._names = ReplyNames(pool)
        self._beside = MemoryStore(self._bounds)
        self._documents = RedisDocuments(self._names, self._bounds)
        self._group = group
        ttl_ms, known = round(self._bounds.kept_s * 1e3), group or LeadGroup("", "")
        self._writing = LogWriting(self._names, known.digest, ttl_ms, self._cancel_here, self._note_soon)
        self._orphans = Orphans(self._names, known.digest, known.name, lambda: self._writing.scoped_ids)
        self._link = RedisLink(url, self._writing.write_new)
        self._writing.attempt = self._link.attempt
        self.draining = False
        self.members: Sequence[str] | None = (group.name,) if group else None
        self._live: dict[tuple[str, str], ReplyLog] = {}  # the logs that this process writes
        self._loop: asyncio.AbstractEventLoop | None = None
        self.on_cancel: Callable[[str, str], object] = lambda salt, id: None
        self.on_taken: Callable[[str, str], object] = lambda salt, id: None  # called with a log taken up

    def put(self, owner: Owner, stored: StoredResponse) -> Kept:
        document = stored.encoded()
        log = self._live.get((owner.salt, stored.id)) or self._beside.held_log(owner.salt, stored.id)
        size = size_of(stored, document) + (log.n_bytes + log.n_beside if log else 0)
        if not self._documents.has_room(document, size):
            self._ask(lambda client: self._documents.drop(client, owner, stored.id))
            if size <= self._bounds.most_bytes and self._beside.put(owner, stored) == "everywhere":
                return "here"
            self._beside.forget(owner.salt, stored.id)
            return "nowhere"

        def put(client: redis.Redis) -> None:
            if not self._writing.gave_up(owner.salt, stored.id):
                self._documents.put(client, owner, stored, document, size)

        answer = self._ask(put)
        loop = self._event_loop()
        answer.add_done_callback(lambda done: _soon(loop, self._note_put, owner, stored, done))
        return "everywhere"

    async def get(self, salt: str, id: str) -> StoredResponse | None:
        if not is_id(id):
            return None
        if (held := self._beside.found(salt, id)) is not None:
            return held
        key = self._names.response(salt, id)
        try:
            document = await self._answer(lambda client: cast("bytes | None", client.get(key)))
        except StoreError:  # a put may have failed meanwhile, and be kept here
            if (held := self._beside.found(salt, id)) is not None:
                return held
            raise
        return None if document is None else decoded(document)

    async def item(self, salt: str, id: str) -> Json | None:
        if (item := await self._beside.item(salt, id)) is not None:
            return item
        holders = self._names.holders(salt, id)
        ids = await self._answer(lambda client: cast("set[bytes]", client.smembers(holders)))
        for one in ids:
            stored = await self.get(salt, one.decode())
            if stored is not None and id in (items := stored.items_by_id):
                return items[id]
        return None

    async def delete(self, owner: Owner, id: str) -> bool:
        if not is_id(id):
            return False
        self._live.pop((owner.salt, id), None)
        was_here = self._beside.forget(owner.salt, id)
        return await self._answer(lambda client: self._documents.drop(client, owner, id)) or was_here

    async def change(self, owner: Owner, id: str, change: Change) -> StoredResponse | None:
        if not is_id(id):
            return None
        if self._beside.found(owner.salt, id) is not None:
            return await self._beside.change(owner, id, change)
        return await self._answer(lambda client: self._documents.change(client, owner, id, change))

    def begin_log(self, owner: Owner, id: str, recipe: Json | None = None) -> ReplyLog:
        if self._beside.found(owner.salt, id) is not None:  # only this process keeps the response
            return self._beside.begin_log(owner, id)
        known = None if recipe is None or not self._group else recipe_of(owner.salt, owner.tenant, id, recipe)
        if known is not None and len(known) > redis_documents.MOST_DOCUMENT:
            known = None
        log = ReplyLog(guarded=known is not None)
        log.n_beside = len(known or b"")
        self._write(Written(owner.salt, id, log, known))
        return log

    async def take_up(self, most: int) -> Sequence[Orphan]:
        if not self._group:
            return ()

        loop = self._event_loop()

        def poll(client: redis.Redis) -> list[TakenLog]:
            leases_known = time.monotonic() - self._link.up_since > LEASES_RENEWED_S
            found = self._orphans.poll(client, most, leases_known=leases_known)
            for one in found:  # here, because a busy event loop could let the lease expire
                _soon(loop, self._live.__setitem__, (one.salt, one.id), one.log)
                n_sent = len(one.log.chunks)
                self._writing.begin(Written(one.salt, one.id, one.log, b"", one.term, n_sent))
            return found

        all_found = await self._answer(poll)
        self.members = self._orphans.members
        return [
            Orphan(Owner(one.salt, one.about["tenant"]), one.id, one.about["recipe"], one.states, one.log)
            for one in all_found
        ]

    def end_readers(self) -> None:
        self.draining = True

    def leave(self, salt: str, id: str) -> None:
        if (log := self._live.get((salt, id))) is not None:
            log.leave()

    async def log(self, salt: str, id: str) -> LogReader | None:
        if (found := self._live.get((salt, id)) or self._beside.held_log(salt, id)) is not None:
            return MovingLog(found, DistantLog(self, salt, id)) if found.guarded else found
        if not is_id(id):
            return None
        keys = self._names.log(salt, id), self._names.awaited(salt, id)  # the log has its key once it begins
        there = await self._answer(lambda client: client.exists(*keys))
        return DistantLog(self, salt, id) if there else None

    async def cancel(self, salt: str, id: str) -> bool:
        key = self._names.writer(salt, id)
        return await self._answer(lambda client: log_writing.ask_to_cancel(client, key))

    async def is_written(self, salt: str, id: str) -> bool:
        if (salt, id) in self._live or await self._beside.is_written(salt, id):
            return True
        key = self._names.awaited(salt, id)
        return bool(await self._answer(lambda client: client.exists(key)))

    async def flush(self) -> None:
        with contextlib.suppress(StoreError, TimeoutError):
            await asyncio.wait_for(
                asyncio.wrap_future(self._link.ask(lambda _: None, talks=False)), FLUSH_TIMEOUT_S
            )

    async def close(self) -> None:
        if self._group:
            self._ask(self._orphans.leave)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.to_thread(self._link.close), CLOSE_S)

    async def entries(self, salt: str, id: str, start: str) -> list[Entry]:
        key = self._names.log(salt, id)
        found: Any = await self._answer(lambda client: client.xrange(key, start, "+", READ_ENTRIES))
        return found

    # -- on the event loop --------------------------------------------

    def _ask(self, work: Callable[[redis.Redis], T]) -> Future[T]:
        self._event_loop()
        return self._link.ask(work)

    async def _answer(self, work: Callable[[redis.Redis], T]) -> T:
        return await asyncio.wrap_future(self._ask(work))

    def _event_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        return self._loop

    def _note_put(self, owner: Owner, stored: StoredResponse, done: Future[None]) -> None:
        """Keep a response in memory if its put (`done`) failed or its log is there; else forget it there."""
        if done.exception() is not None or self._beside.has_log(owner.salt, stored.id):
            self._beside.put(owner, stored)
        else:
            self._beside.forget(owner.salt, stored.id)

    def _write(self, written: Written) -> None:
        self._live[written.salt, written.id] = written.log
        self._event_loop()
        self._link.ask(lambda _: self._writing.begin(written), talks=False)

    def _note_soon(self, results: Sequence[WriteResult]) -> None:
        """Have the event loop note what was written: one wake-up for all logs."""

        def note() -> None:
            for one in results:
                self._note_written(*one)

        if self._loop is not None:
            _soon(self._loop, note)

    def _note_written(self, of: Written, n: int, outcome: Outcome) -> None:
        """Show readers the first n chunks of a log, which Redis has, and act on the outcome."""
        if outcome == "lost":
            of.log.lose()
        elif of.log.guarded:
            of.log.show_chunks(n)
        if outcome == "goes on" or self._live.get((of.salt, of.id)) is not of.log:
            return
        del self._live[of.salt, of.id]
        if outcome == "lost":
            self._beside.hold_log(of.salt, of.id, of.log)
        elif outcome == "fenced":
            of.log.give_way()
            self.on_taken(of.salt, of.id)

    def _cancel_here(self, salt: str, id: str) -> None:
        if self._loop is not None:
            _soon(self._loop, self.on_cancel, salt, id)


def _soon(loop: asyncio.AbstractEventLoop, call: Callable[..., object], *arguments: Any) -> None:
    """Make the event loop call a function, unless the loop has ended. Safe from any thread."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(call, *arguments)
