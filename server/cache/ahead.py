"""Which snapshots are read from disk before a session needs them. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from server.cache.catalogue import Entry


class Ahead:
    """Gives the latest snapshots of the start, each once."""

    def __init__(self, keys: Sequence[str]) -> None:
        """keys: most recently used first."""
        self._waiting = list(reversed(keys))
        self._n_bytes = 0  # of those that next() gave

    def __bool__(self) -> bool:
        """Whether there may be any left."""
        return bool(self._waiting)

    def next(self, entries: Mapping[str, Entry], room_bytes: int) -> str | None:
        """The next key to read; None if no more fits. room_bytes: left now. All together take at most half of
        the room."""
        while self._waiting:
            key = self._waiting.pop()
            entry = entries.get(key)
            if entry is None or entry.data is not None:
                continue
            if self._n_bytes + 2 * entry.n_bytes <= room_bytes:
                self._n_bytes += entry.n_bytes
                return key
        return None
