"""Release memory that this process does not need: pages of mapped files, and freed memory."""

from __future__ import annotations

import ctypes
import mmap
import re
from collections.abc import Sequence
from pathlib import Path

MAPS, STATUS = Path("/proc/self/maps"), Path("/proc/self/status")  # Linux only
KIB = 1024  # bytes
_LIBC = ctypes.CDLL(None, use_errno=True)


def own_memory() -> int:
    """Return the bytes of this process's resident memory without mapped files; 0 if unknown."""
    try:
        found = re.search(r"^RssAnon:\s+(\d+) kB", STATUS.read_text(), re.MULTILINE)
    except OSError:
        return 0
    return KIB * int(found[1]) if found else 0


def return_freed() -> None:
    """Return freed memory to the system, if GNU's C library holds it. A no-op with other C libraries."""
    if trim := getattr(_LIBC, "malloc_trim", None):
        trim(ctypes.c_size_t(0))


def release_mapped(files: Sequence[Path]) -> int:
    """Release the memory of these mapped files. Pages that are used later are read from disk again.

    llama.cpp reads a whole file, and keeps a copy of its weights in the CPU's best order. The file's own
    pages are not used after that.

    Returns:
        Bytes of address space that were released; 0 if the system does not list mappings.
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
