"""Take up unfinished replies of leads that are gone.

Each is continued by one lead of the same kin, which has equal model and options. Used on RedisLink's thread.
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

LEAD_MS = 3000  # milliseconds after which a lead that does not poll is no member any more: six missed polls
MOST_TERMS = 16  # writers of one reply: a reply that ends its lead must not end a pool again and again
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
    """Return the recipe to store in a log's first entry, with the keys by which the reply is found again."""
    return orjson.dumps({"salt": salt, "tenant": tenant, "id": id, "recipe": recipe})


class Orphans:
    """Finds unfinished replies of dead leads, for one lead of their kin.

    Kin are the leads of a pool that can continue each other's replies, since they have the same model and
    options.
    """

    def __init__(self, names: ReplyNames, kin: str, name: str, own: Callable[[], set[str]]) -> None:
        """Begin without orphans.

        Args:
            names: Names of the pool's keys.
            kin: Digest of model and options, equal for all leads of the kin.
            name: Name of this lead, which no other one has.
            own: Returns the places of the logs that this process writes.
        """
        self._names = names
        self._kin = kin
        self._open = names.open(kin)
        self._name = name
        self._own = own
        # places of logs without a lease at the last poll, with the id of the last entry then
        self._silent = dict[str, bytes]()
        self.members: tuple[str, ...] = ()  # names of the leads that live

    def poll(self, client: redis.Redis, most: int, *, leases_known: bool) -> list[TakenLog]:
        """Take up at most this many orphans.

        A writer that is only late renews its lease, or writes an entry, before the second poll that finds no
        lease.

        Args:
            client: The connection.
            most: Maximum orphans.
            leases_known: False soon after an outage, when live writers may not have renewed their leases.
        """
        self._meet(client)
        known = cast("dict[bytes, bytes]", client.hgetall(self._open))
        places = sorted({place.decode() for place in known} - self._own())
        with client.pipeline(transaction=False) as pipe:
            for place in places:
                pipe.get(f"{self._names.at(place)}:writer")
                pipe.exists(f"{self._names.at(place)}:awaited")
            told = pipe.execute()
        silent, free = list[str](), list[tuple[str, bytes | None]]()
        for place, writer, awaited in zip(places, told[::2], told[1::2], strict=True):
            if not awaited:
                client.hdel(self._open, place)
            elif writer == LEFT:
                free.append((place, LEFT))
            elif writer is None:
                silent.append(place)
        before, self._silent = self._silent, self._last_ids(client, silent)
        if leases_known:
            free += [(place, None) for place in silent if before.get(place) == self._silent[place]]
        random.shuffle(free)  # so that leads do not all try the same one
        taken = [self._take(client, place, writer) for place, writer in free[:most]]
        return [found for found in taken if found is not None]

    def _last_ids(self, client: redis.Redis, places: Sequence[str]) -> dict[str, bytes]:
        """Return the id of the last entry of each log; empty for a log without entries."""
        with client.pipeline(transaction=False) as pipe:
            for place in places:
                pipe.xrevrange(f"{self._names.at(place)}:log", count=1)
            entries = cast("list[Entries]", pipe.execute())
        return {place: last[0][0] if last else b"" for place, last in zip(places, entries, strict=True)}

    def _meet(self, client: redis.Redis) -> None:
        """Tell that this lead lives, and note who else does."""
        leads = self._names.leads(self._kin)
        with client.pipeline(transaction=False) as pipe:
            pipe.set(self._names.lead(self._kin, self._name), b"", px=LEAD_MS)
            pipe.sadd(leads, self._name)
            pipe.pexpire(leads, LEAD_MS)
            pipe.smembers(leads)
            known = sorted(name.decode() for name in cast("set[bytes]", pipe.execute()[-1]))
            for name in known:
                pipe.exists(self._names.lead(self._kin, name))
            alive = pipe.execute()
        self.members = tuple(name for name, lives in zip(known, alive, strict=True) if lives)
        if gone := set(known) - set(self.members):
            client.srem(leads, *gone)

    def leave(self, client: redis.Redis) -> None:
        """Be no member any more."""
        client.unlink(self._names.lead(self._kin, self._name))
        client.srem(self._names.leads(self._kin), self._name)

    def _take(self, client: redis.Redis, place: str, writer: bytes | None) -> TakenLog | None:
        """Take up one log; None if it has ended, is gone, or anybody else has changed it meanwhile.

        writer: What poll() read of the log's writer: LEFT, or None without a lease.
        """
        at = self._names.at(place)
        with client.pipeline(transaction=True) as pipe:
            pipe.watch(f"{at}:writer", f"{at}:log")
            if pipe.get(f"{at}:writer") != writer:
                return None
            entries = _entries_of(pipe, f"{at}:log")
            if not entries or END in entries[-1][1] or RECIPE not in entries[0][1]:
                client.hdel(self._open, place)
                return None
            if writer is None and entries[-1][0] != self._silent[place]:
                return None
            term = log_writing.last_term(entries) + 1
            if term >= MOST_TERMS:
                client.hdel(self._open, place)
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
