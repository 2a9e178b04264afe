"""Tiers below the KV cache: snapshots of sequences in host memory, and below that on disk.

All methods run on the engine's thread. Two background threads write and read files; the next method call
processes their results. Only `flush` waits for files to be written. `match`, and `at_work` once a second
while idle, wait for the directory's listing and the heads of new files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeAlias

from server.cache.carriers import Carriers
from server.cache.catalogue import Catalogue, Entry, Found, TierCounts
from server.cache.files import DiskTier
from server.cache.record import Head, digest, name_of, record, salt_digest

Hear: TypeAlias = Callable[[Sequence[Sequence[int]]], None]

BACKLOG_BYTES = 512 << 20  # bytes that may wait for a slow disk: a large snapshot. Half: more are dropped


class Snapshots:
    """Keeps the longest snapshot of each conversation. All leads use the same keys, also after a restart.

    All methods accept keys of evicted snapshots.
    """

    def __init__(
        self,
        *,
        memory_bytes: int,
        disk: DiskTier | None = None,
        on_ready: Callable[[], None] = lambda: None,
        backlog_bytes: int = BACKLOG_BYTES,
        partial: bool = True,
    ) -> None:
        """Begin with what is on disk.

        Args:
            memory_bytes: Budget of host memory.
            disk: The tier below host memory.
            on_ready: Called from another thread after every fetch, failed ones included.
            backlog_bytes: Additional memory for snapshots that wait for the disk; one of any size may wait.
            partial: True if states can be trimmed. Else only whole snapshots are found, and none is replaced.
        """
        self.memory_bytes = memory_bytes
        self._backlog_bytes = backlog_bytes
        self._disk = disk
        self._fingerprint = disk.fingerprint if disk else digest("")
        self._catalogue = Catalogue(partial=partial)
        self._carriers = Carriers(disk, on_ready) if disk else None
        self._ahead: list[str] | None = None  # keys that fetch_ahead() has not looked at, best last
        self._ahead_bytes = 0  # bytes that it has read
        self._unasked: str | None = None  # the key that fetch_ahead() is reading
        self._counts = TierCounts()
        self._hearing: dict[str, Hear] = {}  # by salt
        self._take_in_changes()

    def keeps(self, n_tokens: int, n_bytes: float, idle: int = 0) -> bool:
        """Return True if put() would keep a state for `idle` uses of others; always True with a disk."""
        if self._disk or not self.memory_bytes:
            return self._disk is not None
        return self._catalogue.keeps(n_tokens, n_bytes, self.memory_bytes, idle)

    @property
    def free_bytes(self) -> int:
        """Return the bytes of host memory left in the budget."""
        coming = self._catalogue.entries.get(self._unasked or "")
        n_taken = self._catalogue.held_bytes + (coming.n_bytes if coming else 0)
        return max(0, self.memory_bytes - n_taken)

    def at_work(self, busy: bool) -> None:
        """Pause the disk threads while the model is busy, else find other leads' files. Call it each step."""
        if self._carriers:
            self._carriers.writer.yield_to(busy)
            if not busy:
                self._take_in_changes()

    def hear(self, salt: str, heard: Hear) -> None:
        """Call `heard` later with the tokens of each snapshot with this salt that another lead saves."""
        self._hearing[self._salt_digest(salt)] = heard

    def match(self, tokens: Sequence[int], salt: str = "") -> Found | None:
        """Return the snapshot with the longest common prefix, preferring memory. Not counted as a use."""
        self._take_in_changes()
        return self._catalogue.longest(tokens, self._salt_digest(salt))

    def conversations(self, salt: str = "", *, most: int) -> list[tuple[int, ...]]:
        """Return the tokens of at most `most` snapshots with this salt, most recently used first."""
        self._run_reports()
        return self._catalogue.conversations(self._salt_digest(salt), most)

    def holds(self, tokens: Sequence[int], salt: str, *, used: bool = False) -> bool:
        """Return True if put() would add nothing to any tier; then count a use if `used`."""
        self._take_in_changes()
        key = self._redundant_entry(tokens, salt)
        if key is not None and used:
            self._use_entry(key)
        return key is not None

    def n_saved(self, tokens: Sequence[int], salt: str = "") -> int:
        """Return how many leading tokens are or will be in a file; without a disk, return len(tokens)."""
        if self._disk is None:
            return len(tokens)
        found = self._catalogue.longest(tokens, self._salt_digest(salt))
        entry = self._catalogue.entries[found.key] if found else None
        return found.length if found and entry and (entry.on_disk or entry.writing) else 0

    def put(self, tokens: Sequence[int], salt: str, data: bytes, n_loaded: int = 0) -> None:
        """Keep `data`, the state of these tokens; write it to disk in the background. n_loaded: see Entry."""
        self._run_reports()
        if not tokens:
            return
        salted = self._salt_digest(salt)
        key = name_of(self._fingerprint, salted, tokens)
        entry = self._catalogue.entries.get(key)
        if entry is None:
            longer = self._catalogue.covering(tokens, salted)
            if longer is not None:
                self._use_entry(longer)
                return
            replaces = self._drop_replaced(tokens, salted)
            entry = self._catalogue.add(key, Entry(tuple(tokens), salted, len(data), replaces=replaces))
        if entry.data is None:
            entry.n_bytes = len(data)
            self._catalogue.hold(key, data)
        self._catalogue.use(key, n_loaded)
        if self._carriers and not entry.on_disk and not entry.writing:
            entry.writing = True
            what = record(self._fingerprint, salted, tokens, data)
            self._carriers.write(what, entry.replaces, partial(self._write_done, key))
        self._shrink_to_budget()

    def get(self, key: str, n_loaded: int = 0) -> bytes | None:
        """Return the payload and count a use; None if it is not in memory. n_loaded: see Entry."""
        self._run_reports()
        entry = self._catalogue.held.get(key)
        if entry is None:
            return None
        data, entry.arrived = entry.data, False
        self._counts.hits += 1
        if self._carriers and entry.on_disk:
            self._carriers.touch(key)
        self._use_entry(key, n_loaded)
        return data

    def fetch(self, key: str) -> None:
        """Begin to read a snapshot from disk for get(); drop it if that fails. Then on_ready is called."""
        self._run_reports()
        if key == self._unasked:
            self._unasked = None
        self._fetch_file(key, used=True)

    def fetch_ahead(self, most: int, room_bytes: int) -> bool:
        """Begin to read one of the latest snapshots before it is needed; return False if none is left.

        The first call selects the `most` latest snapshots. Each read waits for on_ready() of the one before.
        Reads take half of the free memory at most (room_bytes are left), evict nothing, and are not uses.
        """
        self._run_reports()
        if self._carriers is None:
            return False
        entries = self._catalogue.entries
        if self._ahead is None:
            self._ahead = self._catalogue.latest(most)[::-1]
        if self._unasked or (self._ahead and any(entry.loading for entry in entries.values())):
            return True
        while self._ahead:
            key = self._ahead.pop()
            entry = entries.get(key)
            fits = entry and self._ahead_bytes + 2 * entry.n_bytes <= room_bytes
            if entry and entry.data is None and fits:
                self._ahead_bytes += entry.n_bytes
                self._unasked = key
                self._fetch_file(key, used=False)
                return True
        return False

    def forget(self, key: str) -> None:
        """Remove a snapshot from all tiers."""
        self._run_reports()
        if key not in self._catalogue.entries:
            return
        self._cancel_write(key)
        replaces = self._catalogue.drop(key).replaces
        if self._carriers:
            self._carriers.remove(key, replaces)

    def flush(self, timeout_s: float) -> int:
        """Wait for queued writes, at most timeout_s; return the number of writes left."""
        if self._carriers:
            self._carriers.writer.wait(timeout_s)
        self._run_reports()
        return sum(entry.writing for entry in self._catalogue.entries.values())

    def close(self) -> None:
        """Drop queued writes. May be called twice."""
        if self._carriers:
            self._carriers.close()

    def counters(self) -> TierCounts:
        """Return counts and bytes, which the engine's calls of other methods update. Safe from any thread."""
        entries = list(self._catalogue.entries.values())
        return replace(
            self._counts,
            memory_bytes=self._catalogue.held_bytes,
            memory_snapshots=len(self._catalogue.held),
            waiting_bytes=self._catalogue.leaving_bytes,
            disk_bytes=self._disk.n_bytes if self._disk else 0,
            disk_snapshots=sum(entry.on_disk for entry in entries),
            evicted_from_disk=self._disk.n_evicted if self._disk else 0,
            skipped_files=self._disk.n_skipped if self._disk else 0,
        )

    def _salt_digest(self, salt: str) -> str:
        return salt_digest(salt, self._fingerprint) if self._disk else digest(salt).hex()

    def _redundant_entry(self, tokens: Sequence[int], salt: str) -> str | None:
        """Return the key of the entry that makes put() of these tokens redundant, None if there is none."""
        key = self._catalogue.having(tokens, self._salt_digest(salt))
        if key is None or self._disk is None:
            return key
        entry = self._catalogue.entries[key]
        if self.memory_bytes and entry.data is None and len(entry.tokens) == len(tokens):
            return None  # put() would also keep it in memory
        return key if entry.on_disk or entry.writing else None

    def _drop_replaced(self, tokens: Sequence[int], salted: str) -> tuple[str, ...]:
        """Drop the entry that these tokens continue; return the keys of its files, to be removed later."""
        shorter = self._catalogue.covered(tokens, salted)
        if shorter is None:
            return ()
        self._cancel_write(shorter)
        return shorter, *self._catalogue.drop(shorter).replaces

    def _use_entry(self, key: str, n_loaded: int = 0) -> None:
        self._catalogue.use(key, n_loaded)
        self._shrink_to_budget()

    def _shrink_to_budget(self) -> None:
        """Drop states from memory and cancel pending writes until both are within their budgets."""
        entries = self._catalogue.entries
        for key in self._catalogue.overflowing(self.memory_bytes):
            self._counts.evicted_from_memory += 1
            if entries[key].writing:
                entries[key].leaving = True
            else:
                self._release_payload(key)
        for key in self._catalogue.backlogged(self._backlog_bytes):
            if self._cancel_write(key):
                self._release_payload(key)
        if self._carriers:
            self._carriers.writer.hurry(self._catalogue.leaving_bytes > 0)

    def _release_payload(self, key: str) -> None:
        """Drop an entry's payload, and the entry too if it is not on disk."""
        self._catalogue.release(key)
        entry = self._catalogue.entries[key]
        if not entry.on_disk:
            self._catalogue.drop(key)
            if self._disk:
                self._counts.lost += 1
                self._disk.reconsider(self._catalogue.entries)

    def _take_in_changes(self) -> None:
        """Process the results of the background threads, and the changes that other leads made."""
        self._run_reports()
        if self._disk:
            scan = self._disk.scan(self._catalogue.entries)
            self._files_gone(scan.gone)
            for age, head in zip(range(len(scan.found), 0, -1), scan.found, strict=True):
                self._adopt_file(head, self._catalogue.n_uses + 1 - age)

    def _adopt_file(self, head: Head, last_used: int) -> None:
        entry = self._catalogue.entries.get(head.name)
        if entry is not None:
            entry.on_disk = True
        elif self._catalogue.covering(head.tokens, head.salt) is None:
            self._drop_replaced(head.tokens, head.salt)  # the lead that wrote the longer one removes the file
            entry = Entry(head.tokens, head.salt, head.n_bytes, on_disk=True, last_used=last_used)
            self._catalogue.add(head.name, entry)
            if heard := self._hearing.get(head.salt):
                heard([head.tokens])

    def _files_gone(self, keys: Iterable[str]) -> None:
        for key in keys:
            entry = self._catalogue.entries.get(key)
            if entry is not None:
                entry.on_disk = False
                if entry.data is None and not entry.loading:
                    self._catalogue.drop(key)

    def _run_reports(self) -> None:
        if self._carriers:
            self._carriers.run_reports()

    def _write_done(self, key: str, ok: bool, removed: list[str]) -> None:
        self._counts.writes += ok
        self._counts.failed_writes += not ok
        self._files_gone(removed)
        if removed and self._disk:
            self._disk.reconsider(self._catalogue.entries)  # another lead may have rewritten a file
        entry = self._catalogue.entries.get(key)
        if entry is None:
            return
        entry.writing = False
        if ok:
            entry.on_disk, entry.replaces = True, ()
        if entry.leaving:
            self._release_payload(key)

    def _read_done(self, key: str, data: bytes | None) -> None:
        self._counts.loads += data is not None
        self._counts.failed_loads += data is None
        asked = key != self._unasked
        if not asked:
            self._unasked = None
        entry = self._catalogue.entries.get(key)
        if entry is None or entry.data is not None:
            return
        if data is None:
            self._catalogue.drop(key)
            if self._disk:
                self._disk.reconsider(self._catalogue.entries, bad=key)
            return
        if asked:
            self._catalogue.hold(key, data)
            entry.arrived = True
            self._use_entry(key)
        elif entry.n_bytes <= self.free_bytes:
            self._catalogue.hold(key, data)
        else:
            entry.loading = False
            self._files_gone(() if entry.on_disk else (key,))

    def _fetch_file(self, key: str, *, used: bool) -> None:
        entry = self._catalogue.entries.get(key)
        if self._carriers and entry is not None and entry.data is None and not entry.loading:
            entry.loading = True
            self._carriers.read(key, partial(self._read_done, key), used=used)

    def _cancel_write(self, key: str) -> bool:
        """Cancel a queued write; return False if it may have begun."""
        if self._carriers is None or not self._carriers.writer.cancel(key):
            return False
        self._catalogue.entries[key].writing = False
        return True
