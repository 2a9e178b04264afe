"""Which snapshots are read from disk before anybody asks for them. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from server.cache.catalogue import Entry


class Ahead:
    """The latest of those that were there at the start, each once, one after another."""

    def __init__(self, keys: Sequence[str]) -> None:
        """keys: the most recently used first."""
        self._waiting = list(reversed(keys))
        self._n_bytes = 0  # of those that next() gave

    def __bool__(self) -> bool:
        """Whether there may be any left."""
        return bool(self._waiting)

    def next(self, entries: Mapping[str, Entry], room_bytes: int) -> str | None:
        """The next one to be read, None if there is none that fits: all together leave as much of the room as
        they take. room_bytes: what is left now."""
        while self._waiting:
            key = self._waiting.pop()
            entry = entries.get(key)
            if entry is None or entry.data is not None:
                continue
            if self._n_bytes + 2 * entry.n_bytes <= room_bytes:
                self._n_bytes += entry.n_bytes
                return key
        return None
