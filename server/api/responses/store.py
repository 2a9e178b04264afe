"""Responses that were to be stored, so that later requests can name them."""

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
    """response: as it was told. messages: the conversation up to and with it, as a chat's messages, its
    instructions left out."""

    response: dict[str, Any]
    messages: Sequence[dict[str, Any]]


class ResponseStore:
    """A bounded memory: the response least recently used is forgotten first. Those of different salts never
    meet. A conversation counts whole with each of its responses, so that forgetting one never takes part of
    another. For the event loop."""

    def __init__(self, *, most: int = MOST_RESPONSES, most_bytes: int = MOST_BYTES) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._held: OrderedDict[tuple[str, str], tuple[StoredResponse, int]] = OrderedDict()
        self.n_bytes = 0

    def __len__(self) -> int:
        return len(self._held)

    def put(self, salt: str, stored: StoredResponse) -> None:
        """Keep it, under its id; one larger than all that may be kept is not."""
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
