"""Memory for what is large: a state of a conversation is 1 MB to 500 MB."""

from __future__ import annotations

import errno
import mmap
from contextlib import suppress

LARGE = 4 << 20  # bytes: two huge pages, so that most of what is smaller would not be in any
HUGE_PAGES: int | None = getattr(mmap, "MADV_HUGEPAGE", None)  # of Linux


def buffer(n_bytes: int) -> memoryview:
    """Writable bytes, all 0, that are given back when the last view of them goes. Large ones are in huge
    pages where there are any: the first touch of ordinary ones takes longer than filling them. Raises
    MemoryError."""
    if n_bytes < LARGE or HUGE_PAGES is None:
        return memoryview(bytearray(n_bytes))
    try:
        mapped = mmap.mmap(-1, n_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)  # shared ones have none
    except OSError as error:
        if error.errno == errno.ENOMEM:
            raise MemoryError(f"there is no room for {n_bytes} bytes") from error
        raise
    with suppress(OSError):  # a kernel without them
        mapped.madvise(HUGE_PAGES)
    return memoryview(mapped)
