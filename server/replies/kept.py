"""Responses and conversations that later requests may refer to, in memory."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import orjson

Json: TypeAlias = dict[str, Any]

MOST_RESPONSES = 1024
MAX_STORED_BYTES = 64 << 20
REPLY_KEPT_S = 86400.0
"""Seconds for which a response is kept. OpenAI keeps 30 days; a day fits a conversation that goes on."""


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """A response with the data that later requests need; or a conversation, with its items as input_items."""

    response: Json
    messages: Sequence[Json]  # the conversation up to this response as chat messages, without instructions
    input_items: Sequence[Json] = ()  # the conversation before this response, as items

    @property
    def id(self) -> str:
        return str(self.response["id"])

    @property
    def items(self) -> Sequence[Json]:
        """Return the conversation, this response included, as items."""
        return [*self.input_items, *self.response.get("output", ())]

    @property
    def items_by_id(self) -> dict[str, Json]:
        """Return the items that have an id, by id."""
        return {str(item["id"]): item for item in self.items if "id" in item}

    @property
    def runs(self) -> bool:
        """Return True until the response has ended."""
        return self.response.get("status") in ("queued", "in_progress")

    def encoded(self) -> bytes:
        return orjson.dumps([self.response, self.messages, self.input_items])


def with_items(stored: StoredResponse, new: Sequence[Json]) -> StoredResponse:
    """Return a conversation with the items `new` added, except for those with an id that it has already."""
    there = {item.get("id") for item in stored.input_items}  # added by an earlier try whose answer was lost
    return replace(stored, input_items=[*stored.input_items, *(i for i in new if i.get("id") not in there)])


def decoded(document: bytes) -> StoredResponse:
    """Return the response that encoded() has converted to this document."""
    return StoredResponse(*orjson.loads(document))


@dataclass(frozen=True, slots=True)
class KeptBounds:
    """Limits of what is stored for one API key."""

    most: int = MOST_RESPONSES
    most_bytes: int = MAX_STORED_BYTES
    kept_s: float = REPLY_KEPT_S  # seconds from the last change


class ResponseStore:
    """A memory of limited size that drops the least recently used response. For the event loop only.

    A response is found only under its own salt. Each response contains its whole conversation, so dropping
    one leaves the others complete.
    """

    def __init__(
        self,
        bounds: KeptBounds = KeptBounds(),
        dropped: Callable[[str, str], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin empty. `dropped` gets salt and id of each dropped response; `clock` returns seconds."""
        self._bounds = bounds
        self._dropped = dropped
        self._clock = clock
        self._held: OrderedDict[tuple[str, str], tuple[StoredResponse, int, float]] = OrderedDict()
        self._items: dict[tuple[str, str], tuple[Json, int]] = {}  # item, number of responses with it
        self.n_bytes = 0

    def __len__(self) -> int:
        return len(self._held)

    def put(self, salt: str, stored: StoredResponse, n_beside: int = 0) -> bool:
        """Keep a response under its id; it replaces an earlier response with this id.

        Args:
            salt: Salt of the requests that may find it.
            stored: The response.
            n_beside: Bytes held elsewhere for the response that also count towards the limit.

        Returns:
            True if it is kept; False if it alone exceeds the limit, and nothing has changed.
        """
        size = len(stored.encoded()) + n_beside
        if size > self._bounds.most_bytes:
            return False
        self._remove(salt, stored.id)
        self._held[salt, stored.id] = stored, size, self._clock() + self._bounds.kept_s
        self.n_bytes += size
        for id, item in stored.items_by_id.items():
            self._items[salt, id] = item, self._items.get((salt, id), (item, 0))[1] + 1
        for key in list(self._overdue()):
            self.delete(*key)
        while len(self._held) > self._bounds.most or self.n_bytes > self._bounds.most_bytes:
            self.delete(*next(iter(self._held)))
        return True

    def get(self, salt: str, id: str) -> StoredResponse | None:
        held = self._held.get((salt, id))
        if held is None:
            return None
        if held[2] <= self._clock():
            self.delete(salt, id)
            return None
        self._held.move_to_end((salt, id))
        return held[0]

    def item(self, salt: str, id: str) -> Json | None:
        """Return the item with this id from the output or input of a stored response."""
        for key in list(self._overdue()):
            self.delete(*key)
        found = self._items.get((salt, id))
        return found[0] if found else None

    def delete(self, salt: str, id: str) -> bool:
        """Forget a response; return True if it was there."""
        was_there = self._remove(salt, id)
        if was_there and self._dropped is not None:
            self._dropped(salt, id)
        return was_there

    def _remove(self, salt: str, id: str) -> bool:
        held = self._held.pop((salt, id), None)
        if held is None:
            return False
        stored, size, _ = held
        self.n_bytes -= size
        for item_id in stored.items_by_id:
            item, n = self._items.pop((salt, item_id))
            if n > 1:
                self._items[salt, item_id] = item, n - 1
        return True

    def _overdue(self) -> Iterator[tuple[str, str]]:
        now = self._clock()
        return (key for key, (_, _, until) in self._held.items() if until <= now)
