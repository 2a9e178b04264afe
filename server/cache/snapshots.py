"""The tiers below the KV cache: snapshots of sequences in host memory, and behind it on disk.

One thread, the engine's, calls; all decisions and all bookkeeping are its own. Two background threads write
and read files, and leave what came of it in a queue that the next call empties. Nothing here waits for a disk
but `flush`, and `match`, once a second, for the names in a directory and the heads of files that are new.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from server.cache.ahead import Ahead
from server.cache.carriers import Carriers, Fetched, Written
from server.cache.catalogue import Catalogue, Entry
from server.cache.files import DiskTier
from server.cache.record import Head, Record, digest, name_of, record, salt_digest

BACKLOG_BYTES = 512 << 20

Tier: TypeAlias = Literal["memory", "disk", "loading"]


@dataclass(frozen=True, slots=True)
class Found:
    """The snapshot that begins most like a prompt: `length` of its `n_tokens` tokens are the prompt's first.
    n_bytes: of its payload."""

    length: int
    key: str
    n_tokens: int
    n_bytes: int
    tier: Tier


@dataclass(frozen=True, slots=True)
class Counters:
    """What there is now, and what has happened since the start."""

    memory_bytes: int  # with what only waits for the disk
    memory_snapshots: int
    waiting_bytes: int  # of those, what is beyond the budget and goes once it is written
    disk_bytes: int  # of the directory, files of other models included
    disk_snapshots: int  # that can be used
    hits: int  # payloads handed out
    loads: int  # payloads read from disk
    failed_loads: int
    writes: int
    failed_writes: int
    evicted_from_memory: int
    evicted_from_disk: int
    lost: int  # evicted from memory before the disk had them
    skipped_files: int


NOTHING = Counters(**dict.fromkeys(Counters.__dataclass_fields__, 0))


class Snapshots:
    """Of several snapshots of a conversation only the longest is kept. Keys are the same for equal
    conversations in all leads and over restarts. A key may be gone at any call; all take one that is."""

    def __init__(
        self,
        *,
        memory_bytes: int,
        disk: DiskTier | None = None,
        on_ready: Callable[[], None] = lambda: None,
        backlog_bytes: int = BACKLOG_BYTES,
        partial: bool = True,
    ) -> None:
        """on_ready: called from another thread when something that was fetched is there, or is not to be had.

        backlog_bytes: how much may wait for the disk beyond memory_bytes; one snapshot always may. partial:
        whether a state may be trimmed to fewer tokens (Backend.can_trim); else only whole snapshots are
        found, and a shorter one is not superfluous beside a longer one.
        """
        self._memory_bytes = memory_bytes
        self._backlog_bytes = backlog_bytes
        self._disk = disk
        self._fingerprint = disk.fingerprint if disk else digest("")
        self._catalogue = Catalogue(partial=partial)
        self._carriers = Carriers(disk, on_ready) if disk else None
        self._ahead: Ahead | None = None
        self._unasked: str | None = None  # what is being read though nobody has asked for it
        self._hits = self._loads = self._failed_loads = 0
        self._writes = self._failed_writes = self._evicted = self._lost = 0
        self._look()

    @property
    def memory_bytes(self) -> int:
        """The budget of host memory."""
        return self._memory_bytes

    def keeps(self, n_tokens: int, n_bytes: float, idle: int = 0) -> bool:
        """Whether a state of this size, put now, would be kept until `idle` others are used."""
        return self._disk is not None or self._catalogue.keeps(n_tokens, n_bytes, self._memory_bytes, idle)

    @property
    def free_bytes(self) -> int:
        """Host memory left of the budget."""
        coming = self._catalogue.entries.get(self._unasked or "")
        n_taken = self._catalogue.held_bytes + (coming.n_bytes if coming else 0)
        return max(0, self._memory_bytes - n_taken)

    def at_work(self, is_so: bool) -> None:
        """Whether the model is at work: writing gives way to it then. Called after every step."""
        if self._carriers:
            self._carriers.writer.yield_to(is_so)

    def match(self, tokens: Sequence[int], salt: str = "") -> Found | None:
        """The snapshot of this salt that has the longest prefix in common with these tokens; among equals one
        in memory. Does not count as a use."""
        self._settle()
        self._look()
        length, key = self._catalogue.longest(tokens, self._digest(salt))
        if key is None:
            return None
        entry = self._catalogue.entries[key]
        tier: Tier = "memory" if entry.data is not None else "loading" if entry.loading else "disk"
        return Found(length, key, entry.n_tokens, entry.n_bytes, tier)

    def conversations(self, salt: str = "", *, most: int) -> list[tuple[int, ...]]:
        """The tokens of the snapshots of this salt, most recently used first."""
        self._settle()
        return self._catalogue.conversations(self._digest(salt), most)

    def holds(self, tokens: Sequence[int], salt: str) -> bool:
        """Whether the state of these tokens is here, or within a longer one, so that it need not be put: on
        disk, if there is one, or on its way there."""
        self._settle()
        self._look()
        return self._having(tokens, salt) is not None

    def renew(self, tokens: Sequence[int], salt: str) -> bool:
        """The same, and if so it counts as used, as if it were put."""
        self._settle()
        self._look()
        key = self._having(tokens, salt)
        if key is not None:
            self._catalogue.use(key)
            self._shrink()
        return key is not None

    def put(self, tokens: Sequence[int], salt: str, data: bytes) -> None:
        """Keep the state of these tokens. Never waits: its file is written behind."""
        self._settle()
        if not tokens:
            return
        salted = self._digest(salt)
        key = name_of(self._fingerprint, salted, tokens)
        entry = self._catalogue.entries.get(key)
        if entry is None:
            longer = self._catalogue.covering(tokens, salted)
            if longer is not None:
                self._catalogue.use(longer)
                self._shrink()
                return
            entry = Entry(len(tokens), len(data), replaces=self._supersede(tokens, salted))
            self._catalogue.add(key, tokens, salted, entry)
        if entry.data is None:
            entry.n_bytes = len(data)
            self._catalogue.hold(key, data)
        self._catalogue.use(key)
        if self._disk and not entry.on_disk and not entry.writing:
            self._save(entry, record(self._fingerprint, salted, tokens, data))
        self._shrink()

    def get(self, key: str, n_loaded: int = 0) -> bytes | None:
        """The payload, if it is in memory. That counts as a use. n_loaded: tokens of it that the KV cache
        will hold too; they count for nothing when room is short."""
        self._settle()
        entry = self._catalogue.held.get(key)
        if entry is None:
            return None
        data, entry.arrived = entry.data, False
        self._hits += 1
        self._catalogue.use(key, n_loaded)
        if self._carriers and entry.on_disk:
            self._carriers.touch(key)
        self._shrink()
        return data

    def fetch(self, key: str) -> None:
        """Have a snapshot on disk read into memory; one that cannot be read vanishes. Either way on_ready is
        called. Once there it stays until it is asked for, or another one arrives and room is short."""
        self._settle()
        if key == self._unasked:
            self._unasked = None
        self._fetch(key, used=True)

    def fetch_ahead(self, most: int, room_bytes: int) -> bool:
        """Have one of the `most` latest, as they are at the first call, read from disk though nobody has
        asked for it, if it fits: together they leave as much of the room as they take. Each is read once,
        which is no use of it, and pushes nothing out. Returns whether one is being read: the next one waits
        until on_ready is called for that."""
        self._settle()
        if self._carriers is None:
            return False
        if self._ahead is None:
            self._ahead = Ahead(self._catalogue.latest(most))
        entries = self._catalogue.entries
        if self._unasked or (self._ahead and any(entry.loading for entry in entries.values())):
            return True
        self._unasked = self._ahead.next(entries, room_bytes)
        if self._unasked:
            self._fetch(self._unasked, used=False)
        return self._unasked is not None

    def forget(self, key: str) -> None:
        """Remove a snapshot from all tiers: one that the model refused, say."""
        self._settle()
        if key not in self._catalogue.entries:
            return
        self._cancel(key)
        replaces = self._catalogue.drop(key).replaces
        if self._carriers:
            self._carriers.remove(key, replaces)

    def flush(self, timeout_s: float) -> int:
        """Wait until what is queued for disk is written, at most that long. Returns how many are not."""
        if self._carriers:
            self._carriers.writer.wait(timeout_s)
        self._settle()
        return sum(entry.writing for entry in self._catalogue.entries.values())

    def close(self) -> None:
        """What has not been written by now will not be. May be called twice."""
        if self._carriers:
            self._carriers.close()

    def counters(self) -> Counters:
        """May be called from any thread; may be as old as the engine's last call."""
        entries = list(self._catalogue.entries.values())
        return Counters(
            memory_bytes=self._catalogue.held_bytes,
            memory_snapshots=len(self._catalogue.held),
            waiting_bytes=self._catalogue.leaving_bytes,
            disk_bytes=self._disk.n_bytes if self._disk else 0,
            disk_snapshots=sum(entry.on_disk for entry in entries),
            hits=self._hits,
            loads=self._loads,
            failed_loads=self._failed_loads,
            writes=self._writes,
            failed_writes=self._failed_writes,
            evicted_from_memory=self._evicted,
            evicted_from_disk=self._disk.n_evicted if self._disk else 0,
            lost=self._lost,
            skipped_files=self._disk.n_skipped if self._disk else 0,
        )

    def check(self) -> None:
        """Raises AssertionError unless the books agree."""
        self._settle()
        self._catalogue.check()
        staying = self._catalogue.held_bytes - self._catalogue.leaving_bytes
        excess = [entry.n_bytes for entry in self._catalogue.held.values() if entry.arrived]
        assert staying <= self._memory_bytes + max(excess, default=0), "over the budget of memory"

    def _digest(self, salt: str) -> str:
        return salt_digest(salt, self._fingerprint) if self._disk else digest(salt).hex()

    def _having(self, tokens: Sequence[int], salt: str) -> str | None:
        """The entry beside which put() of these tokens would change nothing, as far as is known."""
        key = self._catalogue.having(tokens, self._digest(salt))
        if key is None or self._disk is None:
            return key
        entry = self._catalogue.entries[key]
        if self._memory_bytes and entry.data is None and entry.n_tokens == len(tokens):
            return None  # it would be in memory, too
        return key if entry.on_disk or entry.writing else None

    def _supersede(self, tokens: Sequence[int], salted: str) -> tuple[str, ...]:
        """Drop what a longer snapshot makes superfluous. Returns whose files are so once that is written."""
        shorter = self._catalogue.covered(tokens, salted)
        if shorter is None:
            return ()
        self._cancel(shorter)
        return shorter, *self._catalogue.drop(shorter).replaces

    def _shrink(self) -> None:
        """Bring memory within its budget, and what waits for the disk beyond that within its own. Writing is
        in no hurry while memory has room for all."""
        entries = self._catalogue.entries
        for key in self._catalogue.overflowing(self._memory_bytes):
            self._evicted += 1
            if entries[key].writing:
                entries[key].leaving = True
            else:
                self._release(key)
        for key in self._catalogue.backlogged(self._backlog_bytes):
            if self._cancel(key):
                self._release(key)
        if self._carriers:
            self._carriers.writer.hurry(self._catalogue.leaving_bytes > 0)

    def _release(self, key: str) -> None:
        """Out of memory; and out of the books, if it is nowhere else."""
        self._catalogue.release(key)
        entry = self._catalogue.entries[key]
        if not entry.on_disk:
            self._catalogue.drop(key)
            if self._disk:
                self._lost += 1
                self._disk.reconsider(self._catalogue.entries)

    def _look(self) -> None:
        """Learn what other leads have added and removed."""
        if self._disk:
            scan = self._disk.scan(self._catalogue.entries)
            self._gone(scan.gone)
            for age, head in zip(range(len(scan.found), 0, -1), scan.found, strict=True):
                self._adopt(head, self._catalogue.n_uses + 1 - age)

    def _adopt(self, head: Head, last_used: int) -> None:
        entry = self._catalogue.entries.get(head.name)
        if entry is not None:
            entry.on_disk = True
        elif self._catalogue.covering(head.tokens, head.salt) is None:
            self._supersede(head.tokens, head.salt)  # its file is the concern of whoever wrote the longer one
            entry = Entry(len(head.tokens), head.n_bytes, on_disk=True, last_used=last_used)
            self._catalogue.add(head.name, head.tokens, head.salt, entry)

    def _gone(self, keys: Iterable[str]) -> None:
        for key in keys:
            entry = self._catalogue.entries.get(key)
            if entry is not None:
                entry.on_disk = False
                if entry.data is None and not entry.loading:
                    self._catalogue.drop(key)

    def _settle(self) -> None:
        """Enter in the books what the background threads have done."""
        for result in self._carriers.results() if self._carriers else ():
            if isinstance(result, Written):
                self._written(result)
            else:
                self._loaded(result)

    def _written(self, result: Written) -> None:
        self._writes += result.ok
        self._failed_writes += not result.ok
        self._gone(result.removed)
        if result.removed and self._disk:
            self._disk.reconsider(self._catalogue.entries)  # another lead may have written one again
        entry = self._catalogue.entries.get(result.key)
        if entry is None:
            return
        entry.writing = False
        if result.ok:
            entry.on_disk, entry.replaces = True, ()
        if entry.leaving:
            self._release(result.key)

    def _loaded(self, result: Fetched) -> None:
        self._loads += result.data is not None
        self._failed_loads += result.data is None
        asked = result.key != self._unasked
        if not asked:
            self._unasked = None
        entry = self._catalogue.entries.get(result.key)
        if entry is None or entry.data is not None:
            return
        if result.data is None:
            self._catalogue.drop(result.key)
            if self._disk:
                self._disk.reconsider(self._catalogue.entries, bad=result.key)
            return
        if asked:
            self._catalogue.hold(result.key, result.data)
            self._catalogue.use(result.key)
            entry.arrived = True
            self._shrink()
        elif entry.n_bytes <= self.free_bytes:
            self._catalogue.hold(result.key, result.data)
        else:
            entry.loading = False
            self._gone(() if entry.on_disk else (result.key,))

    def _fetch(self, key: str, *, used: bool) -> None:
        entry = self._catalogue.entries.get(key)
        if self._carriers and entry is not None and entry.data is None and not entry.loading:
            entry.loading = True
            self._carriers.read(key, used=used)

    def _save(self, entry: Entry, what: Record) -> None:
        if self._carriers:
            entry.writing = True
            self._carriers.write(what, entry.replaces)

    def _cancel(self, key: str) -> bool:
        """Whether it is certain that this one is not written any more."""
        if self._carriers is None or not self._carriers.cancel(key):
            return False
        self._catalogue.entries[key].writing = False
        return True
