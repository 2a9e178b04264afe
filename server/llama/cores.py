"""CPU cores to run on, in the notation of llama-server's flags."""

from __future__ import annotations

import os

from server.errors import StartupError

MAX_CORES = 8192  # cores that Linux can be built for (NR_CPUS on x86-64)


def of_mask(text: str) -> frozenset[int]:
    """Return the cores of a hexadecimal mask, whose lowest bit is core 0. Raises ValueError."""
    try:
        bits = int(text.removeprefix("0x"), 16) if text else 0
    except ValueError as error:
        raise ValueError(f"{text} is no hexadecimal number") from error
    if bits < 0 or bits >> MAX_CORES:
        raise ValueError(f"{text} names cores beyond {MAX_CORES}")
    return frozenset(core for core in range(bits.bit_length()) if bits >> core & 1)


def of_range(text: str) -> frozenset[int]:
    """Return the cores of FIRST-LAST, both included; a missing end is the machine's first or last core.

    Raises ValueError.
    """
    if not text:
        return frozenset()
    first, hyphen, last = text.partition("-")
    ends = first or "0", last or str((os.cpu_count() or 1) - 1)
    if not hyphen or not all(end.isdecimal() and int(end) < MAX_CORES for end in ends):
        raise ValueError(f"{text} is not FIRST-LAST")
    found = frozenset(range(int(ends[0]), int(ends[1]) + 1))
    if not found:
        raise ValueError(f"{text} names no core")
    return found


def pin(cores: frozenset[int]) -> None:
    """Run this thread, and those it starts from now on, only on these cores; if there are none, do nothing.

    Raises StartupError.
    """
    if not cores:
        return
    if not hasattr(os, "sched_setaffinity"):
        raise StartupError("--cpu-mask and --cpu-range need Linux: leave them out")
    try:
        os.sched_setaffinity(0, cores)
        missing = cores - os.sched_getaffinity(0)
    except OSError:
        missing = cores
    if missing:
        raise StartupError(
            f"this process may not run on core {min(missing)}: give others with --cpu-mask or --cpu-range"
        )
