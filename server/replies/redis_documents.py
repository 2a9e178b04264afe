"""Keep documents of stored responses in Redis, within the limits of an API key. For RedisLink's thread."""

from __future__ import annotations

import contextlib
import time
from typing import Any, cast

import redis
from redis.exceptions import WatchError

from server.errors import StoreError
from server.replies.kept import KeptBounds, StoredResponse, decoded
from server.replies.redis_names import ReplyNames, owner_of, scoped_id_of
from server.replies.store import Change, Owner

# Maximum bytes of a document in Redis. Deployments set --proto-max-bulk-len 16mb, and a longer command ends
# the connection; the last MiB is for the command around the document.
MOST_DOCUMENT = 15 << 20
ITEM_BYTES = 384  # Redis memory for an item's name: 345 measured over 600,000 items (Valkey 9.1)
CHANGES = 16  # maximum tries of a change, if other changes of the response interfere


class RedisDocuments:
    """The documents of one pool."""

    def __init__(self, names: ReplyNames, bounds: KeptBounds) -> None:
        self._names = names
        self._bounds = bounds

    def has_room(self, document: bytes, size: int) -> bool:
        """Return True if the document fits as the only one of its API key. Safe from any thread."""
        return len(document) <= MOST_DOCUMENT and size <= self._bounds.most_bytes

    def put(
        self, client: redis.Redis, owner: Owner, stored: StoredResponse, document: bytes, size: int
    ) -> None:
        """Keep a response of `size` bytes, encoded as `document`."""
        with client.pipeline(transaction=True) as pipe:
            self._queue_put(pipe, owner, stored, document, size)
            all_held = cast("dict[bytes, bytes]", pipe.execute()[-1])
        self._drop_excess(client, owner, all_held)

    def _queue_put(self, pipe: Any, owner: Owner, stored: StoredResponse, document: bytes, size: int) -> None:
        """Queue commands to keep a response of `size` bytes; the last reads all that the API key holds."""
        ttl = round(self._bounds.kept_s * 1e3)
        held = self._names.held(owner.tenant)
        pipe.set(self._names.response(owner.salt, stored.id), document, px=ttl)
        for item_id in stored.items_by_id:
            holders = self._names.holders(owner.salt, item_id)
            pipe.sadd(holders, stored.id)
            pipe.pexpire(holders, ttl)
        pipe.hset(held, scoped_id_of(owner.salt, stored.id), f"{_now_us()} {size}")
        pipe.pexpire(held, ttl)
        pipe.hgetall(held)

    def _drop_excess(self, client: redis.Redis, owner: Owner, all_held: dict[bytes, bytes]) -> None:
        """Drop an API key's expired responses, then its oldest ones until the limits are met.

        all_held: The hash of everything that the API key holds, as described in redis_names.py.
        """
        held = self._names.held(owner.tenant)
        ages = sorted((tuple(map(int, value.split())), field) for field, value in all_held.items())
        n, n_bytes = len(ages), sum(size for (_, size), _ in ages)
        overdue = _now_us() - round(self._bounds.kept_s * 1e6)
        with client.pipeline(transaction=True) as pipe:
            for (at, size), field in ages:
                if n <= self._bounds.most and n_bytes <= self._bounds.most_bytes and at > overdue:
                    break
                n, n_bytes = n - 1, n_bytes - size
                scoped_id = field.decode()
                key, id = self._names.at(scoped_id), scoped_id.removeprefix(f"{owner_of(scoped_id)}:")
                document = cast("bytes | None", client.get(key))
                for item_id in decoded(document).items_by_id if document else ():
                    pipe.srem(self._names.holders_beside(scoped_id, item_id), id)
                pipe.unlink(key, *(f"{key}:{of_it}" for of_it in ("log", "writer", "awaited")))
                pipe.hdel(held, field)
            pipe.execute()

    def drop(self, client: redis.Redis, owner: Owner, id: str) -> bool:
        """Drop a response and its log; return True if there was a response."""
        key = self._names.response(owner.salt, id)
        document = cast("bytes | None", client.get(key))
        with client.pipeline(transaction=True) as pipe:
            pipe.unlink(key, *(f"{key}:{of_it}" for of_it in ("log", "writer", "awaited")))
            pipe.hdel(self._names.held(owner.tenant), scoped_id_of(owner.salt, id))
            for item_id in decoded(document).items_by_id if document else ():
                pipe.srem(self._names.holders(owner.salt, item_id), id)
            pipe.execute()
        return document is not None

    def change(self, client: redis.Redis, owner: Owner, id: str, change: Change) -> StoredResponse | None:
        """Replace a response by change(response); return the new one, None if there is none."""
        key = self._names.response(owner.salt, id)
        for _ in range(CHANGES):
            with client.pipeline(transaction=True) as pipe, contextlib.suppress(WatchError):
                pipe.watch(key)
                if (before := cast("bytes | None", pipe.get(key))) is None:
                    return None
                changed = change(decoded(before))
                document = changed.encoded()
                size = size_of(changed, document)
                if not self.has_room(document, size):
                    raise StoreError.full()
                pipe.multi()
                for item_id in decoded(before).items_by_id.keys() - changed.items_by_id.keys():
                    pipe.srem(self._names.holders(owner.salt, item_id), id)
                self._queue_put(pipe, owner, changed, document, size)
                self._drop_excess(client, owner, cast("dict[bytes, bytes]", pipe.execute()[-1]))
                return changed
        raise StoreError.unreachable()


def size_of(stored: StoredResponse, document: bytes) -> int:
    """Return the bytes that a response takes in Redis: its `document`, and the names of its items."""
    return len(document) + ITEM_BYTES * len(stored.items_by_id)


def _now_us() -> int:
    return time.time_ns() // 1000
