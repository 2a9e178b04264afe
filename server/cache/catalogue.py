"""List all snapshots; choose the snapshot that a prompt should continue, and the one to evict first.

Pure: payloads are not read. A salt is any text that separates conversations; here it is a digest.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter, itemgetter
from typing import Literal, TypeAlias

from server.cache.radix import RadixIndex

Tier: TypeAlias = Literal["memory", "disk", "loading"]


@dataclass(frozen=True, slots=True)
class Found:
    """The snapshot that a prompt should continue, because both begin with equal tokens."""

    length: int  # number of equal leading tokens
    key: str
    n_tokens: int  # number of all tokens of the snapshot
    n_bytes: int  # size of its payload
    tier: Tier


@dataclass(slots=True)
class Entry:
    """One snapshot. Equal token ids in different entries are one object, to save memory."""

    tokens: tuple[int, ...]
    salt: str
    n_bytes: int  # size of the payload
    data: bytes | None = None  # the payload, while in memory
    on_disk: bool = False  # its file exists
    writing: bool = False  # it waits for the disk, or is being written
    leaving: bool = False  # it stays in memory only until it is written
    loading: bool = False  # it is being read
    arrived: bool = False  # it was read for a session that has not taken it yet
    n_loaded: int = 0  # leading tokens that were also in the KV cache after the last use
    last_used: int = 0  # value of Catalogue.n_uses at the last use
    # keys of shorter snapshots whose files are removed once this one is written
    replaces: tuple[str, ...] = ()


@dataclass(slots=True)
class TierCounts:
    """Statistics: the first five fields are current values, the others totals since the start."""

    memory_bytes: int = 0  # payloads in memory, waiting_bytes included
    memory_snapshots: int = 0
    waiting_bytes: int = 0  # payloads beyond the memory budget that wait to be written
    disk_bytes: int = 0  # bytes of the whole directory, including other models' files
    disk_snapshots: int = 0  # snapshots of this model on disk
    hits: int = 0  # payloads handed out
    loads: int = 0  # payloads read from disk
    failed_loads: int = 0
    writes: int = 0
    failed_writes: int = 0
    evicted_from_memory: int = 0
    evicted_from_disk: int = 0
    lost: int = 0  # snapshots evicted from memory before they were written
    skipped_files: int = 0


def worth(n_tokens: int, idle: int) -> float:
    """Return the worth of a snapshot of n_tokens tokens; it falls with `idle` uses of other snapshots."""
    return n_tokens / (1 + idle)


class Catalogue:
    """All known snapshots by key, in memory or on disk.

    If states can be trimmed (`partial`), no snapshot is a prefix of another snapshot with the same salt.
    """

    def __init__(self, *, partial: bool = True) -> None:
        self.entries: dict[str, Entry] = {}
        self.held: dict[str, Entry] = {}  # entries with data
        self._partial = partial
        self._all: RadixIndex[str] = RadixIndex()
        self._warm: RadixIndex[str] = RadixIndex()  # tokens of entries with data
        self._ids: dict[int, int] = {}  # equal token ids share one object in all sequences
        self.n_uses = 0

    def longest(self, tokens: Sequence[int], salt: str) -> Found | None:
        """Return the entry that shares the longest prefix with these tokens, None if there is none.

        Of equally long prefixes, one in memory is preferred. If states cannot be trimmed, all tokens of the
        entry must be a prefix of these tokens.
        """
        wanted = tuple(tokens)
        found = (self._match_in(index, wanted, salt) for index in (self._warm, self._all))
        length, key = max(found, key=itemgetter(0))
        if key is None:
            return None
        entry = self.entries[key]
        tier: Tier = "memory" if entry.data is not None else "loading" if entry.loading else "disk"
        return Found(length, key, len(entry.tokens), entry.n_bytes, tier)

    def covering(self, tokens: Sequence[int], salt: str) -> str | None:
        """Return the key of an entry that begins with all these tokens, None if there is none.

        Such an entry makes an entry for these tokens needless. Always None if states cannot be trimmed.
        """
        return self.having(tokens, salt) if self._partial else None

    def covered(self, tokens: Sequence[int], salt: str) -> str | None:
        """Return the key of the entry whose tokens are a prefix of these tokens, None if there is none.

        There is at most one (see Catalogue). Always None if states cannot be trimmed.
        """
        length, key = self._all.match(tuple(tokens), salt)
        return key if self._partial and key is not None and length == len(self.entries[key].tokens) else None

    def having(self, tokens: Sequence[int], salt: str) -> str | None:
        """Return the key of an entry that contains these tokens, None if there is none.

        If states cannot be trimmed (`partial` is false), the entry must have exactly these tokens.
        """
        length, key = self._match_in(self._all, tuple(tokens), salt)
        return key if length == len(tokens) else None

    def add(self, key: str, entry: Entry) -> Entry:
        """Add an entry without data, and return it."""
        entry.tokens = tuple(map(self._ids.setdefault, entry.tokens, entry.tokens))
        self.entries[key] = entry
        self._all.insert(key, entry.tokens, entry.salt)
        return entry

    def conversations(self, salt: str, most: int) -> list[tuple[int, ...]]:
        """Return the tokens of at most `most` of a salt's entries, most recently used first."""
        found = [entry for entry in self.entries.values() if entry.salt == salt]
        found.sort(key=attrgetter("last_used"), reverse=True)
        return [entry.tokens for entry in found[:most]]

    def latest(self, most: int) -> list[str]:
        """Return the keys of the most recently used entries, in that order."""
        return sorted(self.entries, key=lambda key: self.entries[key].last_used, reverse=True)[:most]

    def drop(self, key: str) -> Entry:
        """Remove an entry and return it. Raises KeyError if it is not there."""
        self.release(key)
        self._all.remove(key)
        return self.entries.pop(key)

    def hold(self, key: str, data: bytes) -> None:
        """Keep `data`, an entry's payload, in memory. Not counted as a use."""
        entry = self.entries[key]
        entry.data, entry.loading = data, False
        self.held[key] = entry
        self._warm.insert(key, entry.tokens, entry.salt)

    def release(self, key: str) -> None:
        """Drop the payload from memory, if it is there."""
        entry = self.held.pop(key, None)
        if entry is not None:
            entry.data, entry.leaving, entry.arrived = None, False, False
            self._warm.remove(key)

    def use(self, key: str, n_loaded: int = 0) -> None:
        """Count a use of the entry; if it was about to leave memory, it stays. n_loaded: see Entry."""
        entry = self.entries[key]
        self.n_uses += 1
        entry.last_used, entry.leaving, entry.n_loaded = self.n_uses, False, n_loaded

    def keeps(self, n_tokens: int, n_bytes: float, budget: int, idle: int) -> bool:
        """Return True if a new entry would stay in memory while `idle` other entries are used.

        Entries of lower worth would be removed to make room for it, within a budget in bytes.
        """
        new = worth(n_tokens, idle)
        above = (e.n_bytes for e in self.held.values() if not e.leaving and self._worth_of(e, 1) >= new)
        return sum(above) + n_bytes <= budget

    def overflowing(self, budget: int) -> Iterator[str]:
        """Yield keys of entries to drop so that the rest fits `budget` bytes of memory, lowest worth first.

        Entries that were read from disk for a session that has not taken them yet come last. The latest of
        them is never yielded, because it would be read again and again.
        """
        staying = {key: entry for key, entry in self.held.items() if not entry.leaving}
        total = sum(entry.n_bytes for entry in staying.values())
        if total <= budget:
            return
        arrived = [key for key, entry in staying.items() if entry.arrived]
        staying.pop(max(arrived, key=lambda key: staying[key].last_used, default=""), None)
        for key in sorted(staying, key=lambda key: (staying[key].arrived, self._worth_of(staying[key]))):
            if total <= budget:
                return
            total -= staying[key].n_bytes
            yield key

    def backlogged(self, budget: int) -> Iterator[str]:
        """Yield the keys whose writes to disk should be cancelled, lowest worth first.

        Ends once the waiting payloads take at most `budget` bytes. The entry of highest worth is never
        yielded.
        """
        leaving = [key for key, entry in self.held.items() if entry.leaving]
        for key in sorted(leaving, key=lambda key: self._worth_of(self.held[key]))[:-1]:
            if self.leaving_bytes <= budget:
                return
            yield key

    @property
    def held_bytes(self) -> int:
        return sum(entry.n_bytes for entry in list(self.held.values()))

    @property
    def leaving_bytes(self) -> int:
        return sum(entry.n_bytes for entry in list(self.held.values()) if entry.leaving)

    def _worth_of(self, entry: Entry, n_more: int = 0) -> float:
        """Return the worth of an entry, after n_more uses of other entries."""
        return worth(len(entry.tokens) - entry.n_loaded, self.n_uses + n_more - entry.last_used)

    def _match_in(self, index: RadixIndex[str], tokens: tuple[int, ...], salt: str) -> tuple[int, str | None]:
        return index.match(tokens, salt) if self._partial else index.match_whole(tokens, salt)
