"""Name, write and check the file of one snapshot, in this format.

    head    magic, version, number of tokens, bytes of payload, fingerprint, salt (both as digests)
    tokens  int32
    sum     CRC-32 of all bytes before, so a scan can trust the tokens without reading the payload
    payload
    sum     CRC-32 of all bytes before

All numbers are little-endian. The sums detect damage, not forgery: processes that can write to the directory
are trusted.
"""

from __future__ import annotations

import hashlib
import os
import stat
import struct
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO

import numpy as np

MAGIC = b"duo-kv\r\n"  # shows in the first bytes if a copy has rewritten line ends
RECORD_VERSION = 1
HEAD = struct.Struct("<8sIIQ32s32s")
SUM = struct.Struct("<I")
CHUNK = 8 << 20  # bytes written between calls of going_on(): 3 to 15 ms of a core. Twice: 6 to 30 ms
OPEN = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
STRETCH = 1 << 10  # scrypt's cost: a guess at a weak API key takes 2 ms and 1 MiB. Twice: 4 ms and 2 MiB


class ForeignError(Exception):
    """The file is no snapshot, or has another version or model. It is neither used nor removed."""


class CorruptError(Exception):
    """The file is a damaged snapshot of this version."""


class StoppedError(Exception):
    """Writing was given up because the process ends."""


@dataclass(frozen=True, slots=True)
class Head:
    """Data of a snapshot's file, without the payload of n_bytes bytes; `salt` is a salt_digest()."""

    name: str
    salt: str
    tokens: tuple[int, ...]
    n_bytes: int


@dataclass(frozen=True, slots=True)
class Record:
    """A snapshot to write; `head` is all bytes before the payload."""

    name: str
    head: bytes
    payload: bytes

    @property
    def size(self) -> int:
        return len(self.head) + len(self.payload) + SUM.size

    def write(self, file: BinaryIO, going_on: Callable[[], bool]) -> None:
        """Write the record. Raises StoppedError once going_on(), called before every CHUNK, returns False."""
        file.write(self.head)
        sum, view = zlib.crc32(self.head), memoryview(self.payload)
        for start in range(0, len(view), CHUNK):
            if not going_on():
                raise StoppedError
            chunk = view[start : start + CHUNK]
            sum = zlib.crc32(chunk, sum)
            file.write(chunk)
        file.write(SUM.pack(sum))


def digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


@lru_cache(maxsize=4096)
def salt_digest(salt: str, fingerprint: bytes) -> str:
    """Return the hex digest that replaces a salt in files with this fingerprint.

    It is slow on purpose, because a salt may be a weak API key.
    """
    return hashlib.scrypt(salt.encode(), salt=b"duo" + fingerprint, n=STRETCH, r=8, p=1, dklen=32).hex()


def name_of(fingerprint: bytes, salt: str, tokens: Sequence[int]) -> str:
    """Return the file name of a snapshot with these tokens, equal in all leads; `salt` is a salt_digest()."""
    packed = np.asarray(tokens, dtype="<i4").tobytes()
    return hashlib.sha256(fingerprint + bytes.fromhex(salt) + packed).hexdigest()


def record(fingerprint: bytes, salt: str, tokens: Sequence[int], payload: bytes) -> Record:
    """Return a record of `payload`, the state of these tokens; `salt` is a salt_digest()."""
    packed = np.asarray(tokens, dtype="<i4").tobytes()
    fields = MAGIC, RECORD_VERSION, len(tokens), len(payload), fingerprint, bytes.fromhex(salt)
    head = HEAD.pack(*fields) + packed
    name = name_of(fingerprint, salt, tokens)
    return Record(name, head + SUM.pack(zlib.crc32(head)), payload)


def private(path: str, flags: int) -> int:
    """Open a file, as the `opener` of open(). Only its owner may access a new file."""
    return os.open(path, flags, 0o600)


def opened(path: Path) -> BinaryIO:
    """Open a file to read.

    Raises:
        ForeignError: It is no regular file. A pipe could block, and a link could lead elsewhere.
        OSError: It cannot be opened.
    """
    descriptor = os.open(path, OPEN)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ForeignError("not a regular file")
    return os.fdopen(descriptor, "rb")


def read(file: BinaryIO, fingerprint: bytes) -> tuple[Head, bytes]:
    """Return the head and payload of a file, both checked.

    Raises CorruptError, OSError or MemoryError, and ForeignError if the file has another fingerprint.
    """
    head, sum = read_head(file, fingerprint)
    payload = file.read(head.n_bytes)
    if file.read(SUM.size) != SUM.pack(zlib.crc32(payload, sum)):
        raise CorruptError("its checksum is wrong")
    return head, payload


def read_head(file: BinaryIO, fingerprint: bytes) -> tuple[Head, int]:
    """Return the head of a file, and the checksum of all bytes before the payload.

    The checksum is compared before the fingerprint: a flipped bit means damage, not another model. Raises
    ForeignError, CorruptError, OSError.
    """
    size = os.fstat(file.fileno()).st_size
    fixed = file.read(HEAD.size)
    if not fixed.startswith(MAGIC):
        raise ForeignError("not a snapshot")
    if len(fixed) < HEAD.size:
        raise CorruptError("it ends too early")
    _, version, n_tokens, n_bytes, of, salt = HEAD.unpack(fixed)
    if version != RECORD_VERSION:
        raise ForeignError(f"of version {version}, not {RECORD_VERSION}")
    if size != HEAD.size + 4 * n_tokens + n_bytes + 2 * SUM.size:
        raise CorruptError("it is not as long as it says")
    packed = file.read(4 * n_tokens)
    sum = zlib.crc32(packed, zlib.crc32(fixed))
    stored = file.read(SUM.size)
    if stored != SUM.pack(sum):
        raise CorruptError("the checksum of its head is wrong")
    if of != fingerprint:
        raise ForeignError("of another model or other options")
    tokens = np.frombuffer(packed, dtype="<i4")
    name = hashlib.sha256(of + salt + packed).hexdigest()
    return Head(name, salt.hex(), tuple(tokens.tolist()), n_bytes), zlib.crc32(stored, sum)
