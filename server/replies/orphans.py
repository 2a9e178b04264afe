"""Take up unfinished replies of dead leads.

Such a reply is called an orphan, and one lead of the same group continues it. A group consists of the leads
of a pool that have equal model and options. For RedisLink's thread only.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias, cast

import orjson
import redis
from redis.exceptions import WatchError

from server.replies import log_writing
from server.replies.kept import Json
from server.replies.redis_names import END, EVENTS, LEFT, RECIPE, STATES, TAKEN, ReplyNames, entry_id
from server.replies.reply_log import ReplyLog

LEAD_MS = 3000  # milliseconds after which a lead that does not poll is dropped as a member: six missed polls
MOST_TERMS = 16  # maximum writers of a reply: a reply that crashes its lead must not crash a whole pool
READ_ENTRIES = 256  # entries of a log read at a time: 10 s of tokens, with one entry per GATHER_S

Entries: TypeAlias = list[tuple[bytes, dict[bytes, bytes]]]


@dataclass(frozen=True, slots=True)
class TakenLog:
    """A log that this process has taken up."""

    about: Json  # what recipe_of() wrote
    states: list[Json]
    log: ReplyLog
    term: int

    @property
    def salt(self) -> str:
        return str(self.about["salt"])

    @property
    def id(self) -> str:
        return str(self.about["id"])


def recipe_of(salt: str, tenant: str, id: str, recipe: Json) -> bytes:
    """Return the recipe to store in a log's first entry, including salt, tenant and id of the reply."""
    return orjson.dumps({"salt": salt, "tenant": tenant, "id": id, "recipe": recipe})


class Orphans:
    """Finds unfinished replies of dead leads, for one lead of their group."""

    def __init__(self, names: ReplyNames, group: str, name: str, own: Callable[[], set[str]]) -> None:
        """Begin without orphans.

        Args:
            names: Names of the pool's keys.
            group: Digest of model and options, equal for all leads of the group.
            name: Name of this lead, unique in the group.
            own: Returns the scoped ids of the logs that this process writes.
        """
        self._names = names
        self._group = group
        self._open = names.open(group)
        self._name = name
        self._own = own
        # last entry's id of each log that had no lease at the last poll, by the log's scoped id
        self._silent = dict[str, bytes]()
        self.members: tuple[str, ...] = ()  # names of the leads that live

    def poll(self, client: redis.Redis, most: int, *, leases_known: bool) -> list[TakenLog]:
        """Take up at most `most` orphans.

        A log becomes an orphan at the second poll that finds no lease and no new entry. Until then a writer
        that is only late renews its lease or writes an entry.

        Args:
            client: The connection.
            most: Maximum orphans.
            leases_known: False soon after an outage, when live writers may not have renewed their leases.
        """
        self._meet(client)
        known = cast("dict[bytes, bytes]", client.hgetall(self._open))
        scoped_ids = sorted({scoped_id.decode() for scoped_id in known} - self._own())
        with client.pipeline(transaction=False) as pipe:
            for scoped_id in scoped_ids:
                pipe.get(f"{self._names.at(scoped_id)}:writer")
                pipe.exists(f"{self._names.at(scoped_id)}:awaited")
            told = pipe.execute()
        silent, free = list[str](), list[tuple[str, bytes | None]]()
        for scoped_id, writer, awaited in zip(scoped_ids, told[::2], told[1::2], strict=True):
            if not awaited:
                client.hdel(self._open, scoped_id)
            elif writer == LEFT:
                free.append((scoped_id, LEFT))
            elif writer is None:
                silent.append(scoped_id)
        before, self._silent = self._silent, self._last_ids(client, silent)
        if leases_known:
            free += [(one, None) for one in silent if before.get(one) == self._silent[one]]
        random.shuffle(free)  # so that leads do not all try the same one
        taken = [self._take(client, scoped_id, writer) for scoped_id, writer in free[:most]]
        return [found for found in taken if found is not None]

    def _last_ids(self, client: redis.Redis, scoped_ids: Sequence[str]) -> dict[str, bytes]:
        """Return the id of the last entry of each log, b"" for a log without entries."""
        with client.pipeline(transaction=False) as pipe:
            for scoped_id in scoped_ids:
                pipe.xrevrange(f"{self._names.at(scoped_id)}:log", count=1)
            entries = cast("list[Entries]", pipe.execute())
        lasts = zip(scoped_ids, entries, strict=True)
        return {scoped_id: last[0][0] if last else b"" for scoped_id, last in lasts}

    def _meet(self, client: redis.Redis) -> None:
        """Announce that this lead lives, and note which other leads live."""
        leads = self._names.leads(self._group)
        with client.pipeline(transaction=False) as pipe:
            pipe.set(self._names.lead(self._group, self._name), b"", px=LEAD_MS)
            pipe.sadd(leads, self._name)
            pipe.pexpire(leads, LEAD_MS)
            pipe.smembers(leads)
            known = sorted(name.decode() for name in cast("set[bytes]", pipe.execute()[-1]))
            for name in known:
                pipe.exists(self._names.lead(self._group, name))
            alive = pipe.execute()
        self.members = tuple(name for name, lives in zip(known, alive, strict=True) if lives)
        if gone := set(known) - set(self.members):
            client.srem(leads, *gone)

    def leave(self, client: redis.Redis) -> None:
        """Leave the group."""
        client.unlink(self._names.lead(self._group, self._name))
        client.srem(self._names.leads(self._group), self._name)

    def _take(self, client: redis.Redis, scoped_id: str, writer: bytes | None) -> TakenLog | None:
        """Take up one log; None if it has ended, is gone, or has been changed by another process meanwhile.

        writer: The lease's value that poll() read: LEFT, or None without a lease.
        """
        at = self._names.at(scoped_id)
        with client.pipeline(transaction=True) as pipe:
            pipe.watch(f"{at}:writer", f"{at}:log")
            if pipe.get(f"{at}:writer") != writer:
                return None
            entries = _entries_of(pipe, f"{at}:log")
            if not entries or END in entries[-1][1] or RECIPE not in entries[0][1]:
                client.hdel(self._open, scoped_id)
                return None
            if writer is None and entries[-1][0] != self._silent[scoped_id]:
                return None
            term = log_writing.last_term(entries) + 1
            if term >= MOST_TERMS:
                client.hdel(self._open, scoped_id)
                client.unlink(f"{at}:awaited")
                return None
            pipe.multi()
            pipe.xadd(f"{at}:log", {TAKEN: b""}, id=entry_id(term, 0), nomkstream=True)
            pipe.set(f"{at}:writer", term, px=log_writing.LEASE_MS)
            pipe.set(f"{at}:awaited", b"", px=log_writing.AWAITED_MS)
            try:
                pipe.execute()
            except WatchError:
                return None
        return _found(entries, term)


def _entries_of(client: redis.Redis, key: str) -> Entries:
    found: Entries = []
    start = "-"
    while True:
        more = cast("Entries", client.xrange(key, start, "+", READ_ENTRIES))
        if not more:
            return found
        found += more
        start = f"({more[-1][0].decode()}"


def _found(entries: Entries, term: int) -> TakenLog:
    log, states = ReplyLog(guarded=True), list[Json]()
    log.n_beside = len(entries[0][1][RECIPE])
    for _, fields in entries:
        if EVENTS in fields:
            log.append(fields[EVENTS])
        states += [orjson.loads(line) for line in fields.get(STATES, b"").splitlines()]
    log.show_chunks(len(log.chunks))
    return TakenLog(orjson.loads(entries[0][1][RECIPE]), states, log, term)
