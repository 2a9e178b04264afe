"""Set up the cache tiers (host memory, disk) below a lead's KV cache."""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

from server.cache.files import DiskTier
from server.cache.snapshots import Snapshots
from server.engine.engine import Engine
from server.engine.thread import SAVE_S, EngineThread
from server.errors import StartupError
from server.lead.recollection import keep, of_model, recall
from server.llama.llamacpp import LlamaBackend
from server.llama.options import LlamaOptions
from server.settings import LeadSettings

logger = logging.getLogger("duo.cache")

PART = 1 << 20  # bytes at each end of a model's file that are hashed to identify it
MIB_SHIFT = 20  # a shift: n << MIB_SHIFT is n MiB in bytes
CACHE_DIVISOR = 4  # use a quarter of free memory: drafters, other programs and the page cache need the rest
# Free bytes assumed where the system does not tell: gives 2 GiB, two long conversations of an 8B model.
UNKNOWN_FREE = 8192 << MIB_SHIFT
PARK_S = 1.0  # maximum seconds until the engine's thread pauses: it reads commands ten times a second
PROC, GROUPS = Path("/proc"), Path("/sys/fs/cgroup")


def open_snapshots(
    settings: LeadSettings, backend: LlamaBackend, on_ready: Callable[[], None]
) -> Snapshots | None:
    """Return the tiers, or None if all are switched off. on_ready: see Snapshots. Raises StartupError."""
    memory_bytes = memory_budget(settings.cache_ram, backend)
    folder, n_bytes = settings.cache_dir, settings.cache_disk << MIB_SHIFT
    if not memory_bytes and folder is None:
        return None
    disk = None
    try:
        if folder is not None:
            disk = DiskTier(folder, budget_bytes=n_bytes, fingerprint=fingerprint(backend.options))
    except OSError as error:
        raise StartupError(
            f"cannot keep conversations in {folder} ({error.strerror}): choose another directory with "
            "--cache-dir"
        ) from error
    logger.info("  cache    %d MiB of host memory", memory_bytes >> MIB_SHIFT)
    snapshots = Snapshots(memory_bytes=memory_bytes, disk=disk, on_ready=on_ready, partial=backend.can_trim)
    if disk is not None:
        logger.info("  cache    %s, %d conversations there", folder, snapshots.counters().disk_snapshots)
    return snapshots


def save_copies(thread: EngineThread) -> None:
    """Save the conversations that were copied to host memory, after the model got stuck.

    If the engine's thread responds, it pauses until this returns. Blocks: do not call it on the event loop.
    """
    parked, saved = threading.Event(), threading.Event()

    def park(_: Engine) -> None:
        parked.set()
        saved.wait()

    thread.command(park)
    parked.wait(PARK_S)
    try:
        thread.engine.residence.save_all(SAVE_S, copied=True)
    except Exception:
        logger.exception("conversations could not be saved")
    saved.set()


def memory_budget(wanted: int | None, backend: LlamaBackend) -> int:
    """Return the bytes of host memory for conversations.

    Args:
        wanted: MiB that the user wants; None: free memory / CACHE_DIVISOR. The pages of mapped weights, which
            the system counts as free, do not count as free here.
        backend: The model.
    """
    if wanted is not None:
        return wanted << MIB_SHIFT
    weights = backend.options.weights
    mapped = backend.n_bytes if weights.mmap and not weights.mlock and not backend.overlaps else 0
    return max(0, free_memory() - mapped) // CACHE_DIVISOR


def free_memory() -> int:
    """Return the bytes that this process may still take, by /proc/meminfo and its cgroup's limit (v2)."""
    try:
        free = _read_numbers(PROC / "meminfo")["MemAvailable:"] << 10
    except (OSError, KeyError):
        return UNKNOWN_FREE
    try:
        lines = (PROC / "self/cgroup").read_text().splitlines()
        group = GROUPS / next(line for line in lines if line.startswith("0::")).removeprefix("0::").strip("/")
        limit = int((group / "memory.max").read_text())
        return min(free, limit - _read_numbers(group / "memory.stat")["anon"])
    except (OSError, KeyError, ValueError, StopIteration):
        return free  # its cgroup has no limit


def _read_numbers(path: Path) -> dict[str, int]:
    """Return the numbers by name in a file whose lines each hold a name and a number."""
    lines = (line.split() for line in path.read_text().splitlines())
    return {words[0]: int(words[1]) for words in lines if len(words) > 1 and words[1].isdigit()}


def pace_of(options: LlamaOptions) -> tuple[object, Callable[[list[float]], None]]:
    """Return what MoveCosts learned about a model on this machine, and a function that stores new values.

    Raises StartupError.
    """
    what = of_model(options)
    return recall("pace", what), lambda memory: keep("pace", what, memory)


def fingerprint(options: LlamaOptions) -> str:
    """Return a text that contains everything that a saved state depends on.

    It has the sizes and digests of the files of model and adapters, the options, and llama.cpp's version.
    Raises StartupError.
    """
    files = "/".join(file_digest(path) for path in options.files)
    return f"{files}/{options.numerics}/{options.n_streams}/{version('llama-cpp-python')}"


def file_digest(path: Path) -> str:
    """Return a text of a file's size and a digest of its first and last PART bytes. Raises OSError."""
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(0)
        head = file.read(PART)
        file.seek(max(0, size - PART))
        return f"{size}-{hashlib.sha256(head + file.read(PART)).hexdigest()}"
