"""The part of a mapped model file that a process has in memory."""

from __future__ import annotations

import ctypes
import mmap
import re
from collections.abc import Sequence
from pathlib import Path

MAPS, STATUS = Path("/proc/self/maps"), Path("/proc/self/status")  # of Linux
KIB = 1024  # bytes
_LIBC = ctypes.CDLL(None, use_errno=True)


def own_memory() -> int:
    """Return bytes of this process's memory that no file lies in; 0 where the system does not tell."""
    try:
        found = re.search(r"^RssAnon:\s+(\d+) kB", STATUS.read_text(), re.MULTILINE)
    except OSError:
        return 0
    return KIB * int(found[1]) if found else 0


def release_mapped(files: Sequence[Path]) -> int:
    """Give back the memory in which these mapped files lie; what is read again comes back by itself.

    llama.cpp reads a whole file to bring its weights into the order that the CPU multiplies best, and keeps
    those apart: the file's own pages are then used no more.

    Returns:
        Bytes of address space that were given back, 0 where the system does not tell what is mapped.
    """
    try:
        lines = MAPS.read_text().splitlines()
    except OSError:
        return 0
    names = {str(path.resolve()) for path in files}
    total = 0
    for line in lines:
        span, *_, name = line.split(maxsplit=5)
        if name in names:
            begin, end = (int(number, 16) for number in span.split("-"))
            where, size = ctypes.c_void_p(begin), ctypes.c_size_t(end - begin)
            if not _LIBC.madvise(where, size, mmap.MADV_DONTNEED):  # refused for locked memory
                total += end - begin
    return total
