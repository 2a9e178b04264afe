"""Keep snapshots under names that clients choose: the files of /slots, in a separate directory.

A name is refused if it could refer to anything but a file in this directory. Each salt has its own names.
Files have the format of record.py, so damaged files and files of other models are never loaded. Safe from any
thread; several leads may share the directory.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from server.cache.files import STALE_NS
from server.cache.record import ForeignError, digest, opened, private, read, record, salt_digest

MAX_NAME_BYTES = 128  # with a salt's prefix of 34, below the 255 bytes of file systems; twice is above
UNFINISHED = re.compile(r"\.[0-9a-f]{16}\.tmp")  # no client can choose such a name: it begins with a dot
ANY_MODEL = digest("slots")  # in place of a fingerprint: the file's name does not depend on the model


class FullError(Exception):
    """The directory's budget has no room for the file."""


@dataclass(frozen=True, slots=True)
class NamedState:
    """The content of a file: tokens and their state."""

    tokens: list[int]
    data: bytes
    n_read: int  # size of the file in bytes


def fault(name: str) -> str | None:
    """Return why a text cannot be a file's name, as a phrase such as "is empty"; None if it can."""
    if not name:
        return "is empty"
    if any(character in name for character in "/\\:"):  # with a colon Windows names a drive, or a stream
        return "must name a file, not a path: '/', '\\' and ':' are not allowed"
    if name.startswith(".") or ".." in name:
        return "may not begin with a dot, nor contain '..'"
    if not name.isprintable():
        return "may contain printable characters only"
    if len(name.encode()) > MAX_NAME_BYTES:
        return f"is longer than {MAX_NAME_BYTES} bytes"
    return None


class NamedFiles:
    """The directory of named states. All methods raise ValueError for a name that has a fault()."""

    def __init__(self, directory: Path, *, budget_bytes: int, fingerprint: str) -> None:
        """Keep named states in a directory, which the first write makes.

        Args:
            directory: Where the files are.
            budget_bytes: Maximum size of all files together; none is removed to make room.
            fingerprint: A text that contains everything that a state depends on.
        """
        self._directory = directory
        self._budget_bytes = budget_bytes
        self._fingerprint = digest(fingerprint)

    def write(self, name: str, tokens: Sequence[int], data: bytes, salt: str = "") -> int:
        """Write tokens and their state `data` to the file of this name and salt, and sync it.

        Replaces an earlier file of this name. Returns the size of the file in bytes.

        Raises:
            FullError: There is no room; nothing is changed.
            OSError: It cannot be written; nothing is changed.
        """
        target = self._path_of(name, salt)
        one = record(self._fingerprint, salt_digest(salt, self._fingerprint), tokens, data)
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        aside = self._directory / f".{secrets.token_hex(8)}.tmp"
        try:
            with open(aside, "xb", opener=private) as file:
                file.truncate(one.size)  # so that others that write now count it already
                if self._n_bytes(target) > self._budget_bytes:
                    raise FullError(
                        f"all files of {self._directory.name}/ may take {self._budget_bytes} bytes"
                    )
                one.write(file, lambda: True)
                file.flush()
                os.fsync(file.fileno())  # the answer promises that it is on disk
            os.replace(aside, target)
        except BaseException:
            aside.unlink(missing_ok=True)
            raise
        return one.size

    def read(self, name: str, salt: str = "") -> NamedState:
        """Return the content of the file of this name and salt, checked.

        Raises:
            FileNotFoundError: There is no such file.
            CorruptError: It is damaged.
            ForeignError: It is no snapshot, or of another model or salt.
            OSError: It cannot be read.
        """
        try:
            with opened(self._path_of(name, salt)) as file:
                head, data = read(file, self._fingerprint)
                n_read = os.fstat(file.fileno()).st_size
        except OSError as error:
            if error.errno == errno.ELOOP:  # a link would lead out of the directory
                raise ForeignError("not a regular file") from error
            raise
        if head.salt != salt_digest(salt, self._fingerprint):
            raise ForeignError("saved with another salt")
        return NamedState(list(head.tokens), data, n_read)

    def _n_bytes(self, replaced: Path) -> int:
        """Return the bytes of all files except the one to replace; remove abandoned files."""
        total = 0
        with os.scandir(self._directory) as entries:
            for entry in entries:
                try:
                    status = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue  # it went meanwhile
                if UNFINISHED.fullmatch(entry.name) and time.time_ns() - status.st_mtime_ns > STALE_NS:
                    Path(entry.path).unlink(missing_ok=True)
                elif entry.name != replaced.name:
                    total += status.st_size
        return total

    def _path_of(self, name: str, salt: str) -> Path:
        if (why := fault(name)) is not None:
            raise ValueError(why)
        if salt:
            name = f"{salt_digest(salt, ANY_MODEL)[:32]}..{name}"  # two dots: no client can choose it
        return self._directory / name
