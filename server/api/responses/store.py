"""Stored responses, which later requests may name."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson

MOST_RESPONSES = 1024
MOST_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """messages: the conversation with this response as chat messages, without instructions."""

    response: dict[str, Any]
    messages: Sequence[dict[str, Any]]


class ResponseStore:
    """A bounded memory: drops the least recently used response. Salts are separate. Each response counts its
    whole conversation, so dropping one leaves the others whole. For the event loop."""

    def __init__(self, *, most: int = MOST_RESPONSES, most_bytes: int = MOST_BYTES) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._held: OrderedDict[tuple[str, str], tuple[StoredResponse, int]] = OrderedDict()
        self.n_bytes = 0

    def __len__(self) -> int:
        return len(self._held)

    def put(self, salt: str, stored: StoredResponse) -> None:
        """Keeps it under its id, unless it alone exceeds most_bytes."""
        size = len(orjson.dumps(stored.response)) + len(orjson.dumps(stored.messages))
        if size > self._most_bytes:
            return
        self._held[salt, stored.response["id"]] = stored, size
        self.n_bytes += size
        while len(self._held) > self._most or self.n_bytes > self._most_bytes:
            self.n_bytes -= self._held.popitem(last=False)[1][1]

    def get(self, salt: str, id: str) -> StoredResponse | None:
        held = self._held.get((salt, id))
        if held is None:
            return None
        self._held.move_to_end((salt, id))
        return held[0]

    def delete(self, salt: str, id: str) -> bool:
        """Whether there was one."""
        held = self._held.pop((salt, id), None)
        self.n_bytes -= held[1] if held else 0
        return held is not None
