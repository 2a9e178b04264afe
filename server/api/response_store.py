"""Store responses that later requests may refer to."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import orjson

Json: TypeAlias = dict[str, Any]

MOST_RESPONSES = 1024
MAX_STORED_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """A response, and what later requests need of it."""

    response: Json
    messages: Sequence[Json]  # the conversation up to this response as chat messages, without instructions
    input_items: Sequence[Json] = ()  # the conversation before this response, as items

    @property
    def items(self) -> Sequence[Json]:
        """Return the conversation up to and with this response, as items."""
        return [*self.input_items, *self.response.get("output", ())]


class ResponseStore:
    """A bounded memory that drops the least recently used response. For the event loop only.

    Salts are separate. Each response counts its whole conversation, so dropping one leaves the others whole.
    """

    def __init__(self, *, most: int = MOST_RESPONSES, most_bytes: int = MAX_STORED_BYTES) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._held: OrderedDict[tuple[str, str], tuple[StoredResponse, int]] = OrderedDict()
        self._items: dict[tuple[str, str], tuple[Json, int]] = {}  # with the number of responses that have it
        self.n_bytes = 0

    def __len__(self) -> int:
        return len(self._held)

    def put(self, salt: str, stored: StoredResponse) -> None:
        """Keep a response under its id, unless it alone exceeds most_bytes."""
        size = len(orjson.dumps([stored.response, stored.messages, stored.input_items]))
        if size > self._most_bytes:
            return
        self._held[salt, stored.response["id"]] = stored, size
        self.n_bytes += size
        for id, item in _with_ids(stored):
            self._items[salt, id] = item, self._items.get((salt, id), (item, 0))[1] + 1
        while len(self._held) > self._most or self.n_bytes > self._most_bytes:
            (salt_of_oldest, id), _ = next(iter(self._held.items()))
            self.delete(salt_of_oldest, id)

    def get(self, salt: str, id: str) -> StoredResponse | None:
        held = self._held.get((salt, id))
        if held is None:
            return None
        self._held.move_to_end((salt, id))
        return held[0]

    def item(self, salt: str, id: str) -> Json | None:
        """Return the item with this id, of a stored response or of its input."""
        found = self._items.get((salt, id))
        return found[0] if found else None

    def delete(self, salt: str, id: str) -> bool:
        """Forget a response; return True if it was there."""
        held = self._held.pop((salt, id), None)
        if held is None:
            return False
        stored, size = held
        self.n_bytes -= size
        for item_id, _ in _with_ids(stored):
            item, n = self._items.pop((salt, item_id))
            if n > 1:
                self._items[salt, item_id] = item, n - 1
        return True


def _with_ids(stored: StoredResponse) -> Iterator[tuple[str, Json]]:
    """Yield the items of a response that have an id, each id once."""
    yield from {str(item["id"]): item for item in stored.items if "id" in item}.items()
