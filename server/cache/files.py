"""Snapshots on disk: a directory with a budget, which several leads may share.

Nothing that is found there is believed, and nothing that happens there is an error to a caller: a file that
is damaged, of another model, or gone when it is looked for is one that is not there. `scan` and `reconsider`
are for one thread; the others may be called from any.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import secrets
import threading
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from server.cache.record import (
    CorruptError,
    ForeignError,
    Head,
    Record,
    StoppedError,
    digest,
    opened,
    read,
    read_head,
    salt_digest,
)

NAME = re.compile(r"([0-9a-f]{64})\.duo")
ASIDE = re.compile(r"[0-9a-f]{64}\.duo\.[0-9a-f]{16}\.tmp")
RESCAN_NS = 1_000_000_000
SETTLED_NS = 2_000_000_000  # a directory's time is this coarse at worst (FAT): younger ones may hide a change
STALE_NS = 600_000_000_000  # nobody writes one snapshot for ten minutes

logger = logging.getLogger("duo.cache")


@dataclass(frozen=True, slots=True)
class Scan:
    """What is new since the last scan, least recently used first. Names may be reported as found that were
    found, or written, before."""

    found: tuple[Head, ...] = ()
    gone: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Stored:
    used_ns: int
    size: int
    path: Path


class DiskTier:
    """The snapshots of one directory that are of this fingerprint: the model's file, the KV cache's types and
    whatever else a state depends on, as one string. Files of others count towards the budget, which is one
    for the directory; the least recently used goes first, whosever it is. Files with names of another form
    are not touched."""

    def __init__(
        self,
        directory: Path,
        *,
        budget_bytes: int,
        fingerprint: str,
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        """clock: the time of day in ns. Raises OSError if there is no such directory and none can be made."""
        self.budget_bytes = budget_bytes
        self.n_evicted = 0
        self.n_skipped = 0  # files that were damaged, of another model, or not readable
        self.n_bytes = 0  # of the directory, when it was last counted
        self._fingerprint = digest(fingerprint)
        self._directory = directory
        self._clock = clock
        self._known: dict[str, int] = {}  # names and inodes; one that was skipped stays here: it is told once
        self._bad: set[str] = set()
        self._scanned_ns: int | None = None
        self._stamp: int | None = None
        self._lock = threading.Lock()  # scans and reads count from threads of their own
        self._told: set[str] = set()
        self._warned_of_writing = False
        self._make()
        if directory.stat().st_mode & 0o022:
            logger.warning("others may write to %s: what they put there would be loaded", directory)
        self.trim()

    @property
    def fingerprint(self) -> bytes:
        return self._fingerprint

    def salt_digest(self, salt: str) -> str:
        return salt_digest(salt, self._fingerprint)

    def scan(self, believed: Iterable[str]) -> Scan:
        """What other leads (and this one) added, told from heads only, and which of the believed ones are not
        there. Returns nothing if the directory has not changed, or has been looked at within a second."""
        now = self._clock()
        if self._scanned_ns is not None and abs(now - self._scanned_ns) < RESCAN_NS:
            return Scan()
        self._scanned_ns = now
        try:
            changed = self._directory.stat().st_mtime_ns
            if changed == self._stamp:
                return Scan()
            self._stamp = changed if now - changed > SETTLED_NS else None
            with os.scandir(self._directory) as entries:
                there = {m[1]: entry.inode() for entry in entries if (m := NAME.fullmatch(entry.name))}
        except OSError:
            self._stamp, there = None, {}
        gone = tuple(name for name in believed if name not in there)
        fresh = [name for name, inode in there.items() if self._known.get(name) != inode]
        self._known = there
        self._bad = {name for name in self._bad if name in there}.difference(fresh)
        return Scan(self._heads(fresh), gone)

    def reconsider(self, keep: Collection[str], *, bad: str | None = None) -> None:
        """Let the next scan find again what was found before and is not kept: it may be back, or have been
        superseded by something that is lost now. bad: do not find this one again, as it is."""
        if bad is not None and bad in self._known:
            self._bad.add(bad)
        self._known = {name: i for name, i in self._known.items() if name in keep or name in self._bad}
        self._stamp = None

    def write(self, record: Record, going_on: Callable[[], bool]) -> tuple[bool, list[str]]:
        """Whether it is on disk now, and whose files had to go for it. Never over the budget: room is made
        before the first byte. Not synced: a file that a power failure cuts short is found by its checksum."""
        removed: list[str] = []
        aside = self._path(record.name + ".duo." + secrets.token_hex(8) + ".tmp")
        try:
            if record.size > self.budget_bytes:
                raise OSError(errno.ENOSPC, "it is larger than the budget of the directory")
            self._make()
            with open(aside, "xb", opener=_private) as file:
                file.truncate(record.size)  # so that whoever else makes room now counts it too
                removed = self.trim(aside)
                if self.n_bytes > self.budget_bytes:
                    raise OSError(errno.ENOSPC, "the budget of the directory does not allow it")
                record.write(file, going_on)
            os.utime(aside, ns=(self._clock(), self._clock()))
            os.replace(aside, self._path(record.name + ".duo"))
        except (OSError, StoppedError) as error:
            _unlink(aside)
            self._say_of_writing(error)
            return False, removed
        self._warned_of_writing = False
        return True, removed

    def read(self, name: str, *, used: bool = True) -> bytes | None:
        """The payload, every byte checked; None if it cannot be had. used: whether that counts as a use."""
        path = self._path(name + ".duo")
        try:
            with opened(path) as file:
                head, payload = read(file, self._fingerprint)
            if head.name != name:
                raise ForeignError("not what its name says")
        except FileNotFoundError:
            return None  # another lead needed the room
        except (CorruptError, ForeignError, OSError, MemoryError) as error:
            self._skip(name, error)
            return None
        if used:
            self.touch(name)
        return payload

    def touch(self, name: str) -> None:
        """It was used now."""
        try:
            now = self._clock()
            os.utime(self._path(name + ".duo"), ns=(now, now), follow_symlinks=False)
        except OSError:
            pass  # gone, or not ours to touch

    def remove(self, names: Iterable[str]) -> None:
        for name in names:
            _unlink(self._path(name + ".duo"))

    def trim(self, sparing: Path | None = None) -> list[str]:
        """Remove what a crash left half-written and, until the budget holds, what was least recently used.
        Returns whose files are gone. sparing: half-written, but by us, whatever the time of its file says."""
        removed: list[str] = []
        stored = sorted(self._stored(), key=lambda one: one.used_ns)
        n_bytes, now = sum(one.size for one in stored), self._clock()
        for one in stored:
            name = NAME.fullmatch(one.path.name)
            stale = name is None and one.path != sparing and now - one.used_ns > STALE_NS
            if not stale and (name is None or n_bytes <= self.budget_bytes):
                continue
            if _unlink(one.path):
                n_bytes -= one.size
                removed += [name[1]] if name else []
        self.n_evicted += len(removed)
        self.n_bytes = n_bytes
        return removed

    def _heads(self, names: list[str]) -> tuple[Head, ...]:
        heads: list[tuple[int, Head]] = []
        for name in names:
            try:
                with opened(self._path(name + ".duo")) as file:
                    used_ns = os.fstat(file.fileno()).st_mtime_ns
                    head = read_head(file, self._fingerprint)
                if head.name != name:
                    raise ForeignError("not what its name says")
            except FileNotFoundError:
                continue
            except (CorruptError, ForeignError, OSError, MemoryError) as error:
                self._bad.add(name)
                self._skip(name, error)
            else:
                heads.append((used_ns, head))
        return tuple(head for _, head in sorted(heads, key=lambda one: one[0]))

    def _stored(self) -> list[_Stored]:
        stored: list[_Stored] = []
        try:
            with os.scandir(self._directory) as entries:
                for entry in entries:
                    if NAME.fullmatch(entry.name) or ASIDE.fullmatch(entry.name):
                        try:
                            status = entry.stat(follow_symlinks=False)
                        except OSError:
                            continue  # it went meanwhile
                        if entry.is_file(follow_symlinks=False):
                            stored.append(_Stored(status.st_mtime_ns, status.st_size, Path(entry.path)))
        except OSError:
            return stored
        return stored

    def _skip(self, name: str, error: Exception) -> None:
        """Damage is told of every file, and removed; that there are files of others of every kind once."""
        path, reason = self._path(name + ".duo"), str(error) or type(error).__name__
        with self._lock:
            self.n_skipped += 1
            known = isinstance(error, ForeignError) and reason in self._told
            self._told.add(reason)
        logger.log(logging.INFO if known else logging.WARNING, "%s is skipped: %s", path, reason)
        if isinstance(error, CorruptError):
            _unlink(path)

    def _say_of_writing(self, error: Exception) -> None:
        """Once until it works again: a full disk fails every time."""
        if isinstance(error, OSError) and not self._warned_of_writing:
            self._warned_of_writing = True
            logger.warning("a conversation could not be saved in %s: %s", self._directory, error)

    def _make(self) -> None:
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)

    def _path(self, file_name: str) -> Path:
        return self._directory / file_name


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _unlink(path: Path) -> bool:
    try:
        path.unlink(missing_ok=True)
    except OSError:
        return False
    return True
