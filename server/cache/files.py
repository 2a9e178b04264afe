"""Keep snapshots on disk, in a directory of limited size that several leads may share.

Files are not trusted, and cause no errors: a file that is damaged, of another model, or gone counts as
missing. Call `scan` and `reconsider` from one thread only, other methods from any thread.
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
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, TypeVar

from server.cache.record import (
    CorruptError,
    ForeignError,
    Head,
    Record,
    StoppedError,
    digest,
    opened,
    private,
    read,
    read_head,
)

NAME = re.compile(r"([0-9a-f]{64})\.duo")
UNFINISHED = re.compile(r"[0-9a-f]{64}\.duo\.[0-9a-f]{16}\.tmp")
RESCAN_NS = 1_000_000_000  # ns between scans, which take some ms. Twice: other leads' files wait 2 s
# A directory that changed less than this number of ns ago is read again at the next scan: a later change may
# have left the same time, since the coarsest clock (FAT's) has steps of 2 s. Half: changes may go unseen.
SETTLED_NS = 2_000_000_000
STALE_NS = 600_000_000_000  # ns; older unfinished files are abandoned: 120 times PATIENT_S. Half: 60 times

logger = logging.getLogger("duo.cache")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Scan:
    """Changes since the last scan: new snapshots, least recently used first, and names that are gone.

    `found` may repeat snapshots of earlier scans, or include snapshots that this lead wrote.
    """

    found: tuple[Head, ...] = ()
    gone: tuple[str, ...] = ()


class DiskTier:
    """The snapshots in a directory that have one fingerprint: a digest of all that a state depends on.

    The budget limits the whole directory: files of other models count, and the least recently used of all
    files are removed first. Files are never touched if their names do not have the form of a snapshot's.
    """

    def __init__(
        self, directory: Path, *, budget_bytes: int, fingerprint: str, clock: Callable[[], int] = time.time_ns
    ) -> None:
        """Open a directory, or make it. Raises OSError.

        Args:
            directory: The directory.
            budget_bytes: Maximum size of all snapshots in it.
            fingerprint: A text that contains everything that a state depends on.
            clock: Returns the time of day in nanoseconds.
        """
        self.budget_bytes = budget_bytes
        self.n_evicted = 0
        self.n_skipped = 0  # files that were damaged, of another model, or not readable
        self.n_bytes = 0  # size of the directory's snapshots when they were last counted
        self.fingerprint = digest(fingerprint)
        self._directory = directory
        self._clock = clock
        self._known: dict[str, int] = {}  # inodes by name, skipped files included
        self._bad: set[str] = set()
        self._scanned_ns: int | None = None
        self._stamp: int | None = None
        self._lock = (
            threading.Lock()
        )  # guards n_skipped and _logged, since scans and reads run on two threads
        self._logged: set[str] = set()
        self._warned_of_writing = False
        self._make_directory()
        if directory.stat().st_mode & 0o022:
            logger.warning(
                "other users may write to %s, and duo loads what lies there: make it yours alone (chmod 700)",
                directory,
            )
        self.trim()

    def scan(self, believed: Iterable[str]) -> Scan:
        """Return the heads of new files, and the names in `believed` whose files are gone.

        Both are empty if the directory is unchanged, or was scanned less than RESCAN_NS nanoseconds ago.
        """
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
        return Scan(self._read_heads(fresh), gone)

    def reconsider(self, keep: Collection[str], *, bad: str | None = None) -> None:
        """Make the next call of scan() report all files again, except those in `keep`.

        Call it if a file may have returned or changed, or if the snapshot that was to replace it is lost.

        Args:
            keep: Names not to report.
            bad: A file not to report until it changes.
        """
        if bad is not None and bad in self._known:
            self._bad.add(bad)
        self._known = {name: i for name, i in self._known.items() if name in keep or name in self._bad}
        self._stamp = self._scanned_ns = None

    def write(self, record: Record, going_on: Callable[[], bool]) -> tuple[bool, list[str]]:
        """Write a file; return (True on success, names of the snapshots removed to make room).

        The budget is never exceeded: room is made before the first byte. The file is not synced: its checksum
        shows if it is incomplete. Writing stops once going_on() returns False.
        """
        removed: list[str] = []
        aside = self._path_of(record.name + ".duo." + secrets.token_hex(8) + ".tmp")
        try:
            if record.size > self.budget_bytes:
                raise OSError(errno.ENOSPC, "it is larger than the budget of the directory")
            self._make_directory()
            with open(aside, "xb", opener=private) as file:
                file.truncate(record.size)  # so that other leads that make room count it already
                removed = self.trim(aside)
                if self.n_bytes > self.budget_bytes:
                    raise OSError(errno.ENOSPC, "the budget of the directory does not allow it")
                record.write(file, going_on)
            os.utime(aside, ns=(self._clock(), self._clock()))
            os.replace(aside, self._path_of(record.name + ".duo"))
        except (OSError, StoppedError) as error:
            _unlink_file(aside)
            self._say_of_writing(error)
            return False, removed
        self._warned_of_writing = False
        return True, removed

    def read(self, name: str, *, used: bool = True) -> bytes | None:
        """Return a file's checked payload, None if it is missing or unusable. `used`: count a use."""
        usable = self._read_usable(name, read)
        if usable is not None and used:
            self.touch(name)
        return usable and usable[2]

    def touch(self, name: str) -> None:
        """Count a use of the file now."""
        now = self._clock()
        with suppress(OSError):  # gone, or not ours to touch
            os.utime(self._path_of(name + ".duo"), ns=(now, now), follow_symlinks=False)

    def remove(self, names: Iterable[str]) -> None:
        for name in names:
            _unlink_file(self._path_of(name + ".duo"))

    def trim(self, sparing: Path | None = None) -> list[str]:
        """Remove abandoned files and, until the budget holds, the least recently used snapshots.

        Args:
            sparing: A half-written file of this process, which is not abandoned.

        Returns:
            The names of the removed snapshots.
        """
        removed: list[str] = []
        stored = sorted(self._stored_files())
        n_bytes, now = sum(size for _, size, _ in stored), self._clock()
        for used_ns, size, path in stored:
            name = NAME.fullmatch(path.name)
            stale = name is None and path != sparing and now - used_ns > STALE_NS
            if not stale and (name is None or n_bytes <= self.budget_bytes):
                continue
            if _unlink_file(path):
                n_bytes -= size
                removed += [name[1]] if name else []
        self.n_evicted += len(removed)
        self.n_bytes = n_bytes
        return removed

    def _read_heads(self, names: list[str]) -> tuple[Head, ...]:
        heads: list[tuple[int, Head]] = []
        for name in names:
            if usable := self._read_usable(name, read_head):
                heads.append(usable[:2])
            elif os.path.lexists(self._path_of(name + ".duo")):
                self._bad.add(name)
        return tuple(head for _, head in sorted(heads, key=lambda one: one[0]))

    def _read_usable(
        self, name: str, read: Callable[[BinaryIO, bytes], tuple[Head, T]]
    ) -> tuple[int, Head, T] | None:
        """Return (last use in ns, head, second result of `read`); None if the file is gone or unusable."""
        try:
            with opened(self._path_of(name + ".duo")) as file:
                used_ns = os.fstat(file.fileno()).st_mtime_ns
                head, rest = read(file, self.fingerprint)
            if head.name != name:
                raise ForeignError("not what its name says")
        except FileNotFoundError:
            return None  # another lead needed the room
        except (CorruptError, ForeignError, OSError, MemoryError) as error:
            self._skip_file(name, error)
            return None
        return used_ns, head, rest

    def _stored_files(self) -> list[tuple[int, int, Path]]:
        """Return (time of the last use in ns, bytes, path) of all files of duo, including unfinished ones."""
        stored: list[tuple[int, int, Path]] = []
        with suppress(OSError), os.scandir(self._directory) as entries:
            for entry in entries:
                if NAME.fullmatch(entry.name) or UNFINISHED.fullmatch(entry.name):
                    with suppress(OSError):  # it went meanwhile
                        status = entry.stat(follow_symlinks=False)
                        if entry.is_file(follow_symlinks=False):
                            stored.append((status.st_mtime_ns, status.st_size, Path(entry.path)))
        return stored

    def _skip_file(self, name: str, error: Exception) -> None:
        """Count and log a file that cannot be used, and remove it if it is damaged.

        Of files that raise ForeignError, only the first one for each reason is logged as a warning.
        """
        path, reason = self._path_of(name + ".duo"), str(error) or type(error).__name__
        with self._lock:
            self.n_skipped += 1
            known = isinstance(error, ForeignError) and reason in self._logged
            self._logged.add(reason)
        logger.log(logging.INFO if known else logging.WARNING, "%s is skipped: %s", path, reason)
        if isinstance(error, CorruptError):
            _unlink_file(path)

    def _say_of_writing(self, error: Exception) -> None:
        """Warn of the first failed write after a successful one: on a full disk, every write fails."""
        if isinstance(error, OSError) and not self._warned_of_writing:
            self._warned_of_writing = True
            logger.warning("a conversation could not be saved in %s: %s", self._directory, error)

    def _make_directory(self) -> None:
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)

    def _path_of(self, file_name: str) -> Path:
        return self._directory / file_name


def _unlink_file(path: Path) -> bool:
    try:
        path.unlink(missing_ok=True)
    except OSError:
        return False
    return True
