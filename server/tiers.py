"""Where a lead keeps the conversations that its KV cache has no room for, put together from the settings."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

from server.cache.files import DiskTier
from server.cache.snapshots import Snapshots
from server.engine.residence import Kept
from server.errors import StartupError
from server.llama.llamacpp import LlamaBackend
from server.llama.options import LlamaOptions
from server.recollection import keep, of_model, recall
from server.settings import LeadSettings

logger = logging.getLogger("duo.cache")

PART = 1 << 20  # bytes of each end of a model's file that tell it from another
MIB = 20  # bits


def open_snapshots(
    settings: LeadSettings, backend: LlamaBackend, on_ready: Callable[[], None]
) -> Snapshots | None:
    """None if there shall be none. on_ready: see Snapshots. Raises StartupError."""
    if not settings.cache_ram and settings.cache_dir is None:
        return None
    disk = None
    if settings.cache_dir is not None:
        try:
            disk = DiskTier(
                settings.cache_dir,
                budget_bytes=settings.cache_disk << MIB,
                fingerprint=fingerprint(backend.options),
            )
        except OSError as error:
            raise StartupError(
                f"cannot keep conversations in {settings.cache_dir} ({error.strerror}): choose another "
                "directory with --cache-dir"
            ) from error
    memory_bytes = settings.cache_ram << MIB
    snapshots = Snapshots(memory_bytes=memory_bytes, disk=disk, on_ready=on_ready, partial=backend.can_trim)
    if settings.cache_dir is not None:
        n_found = snapshots.counters().disk_snapshots
        logger.info("  cache    %s, %d conversations there", settings.cache_dir, n_found)
    return snapshots


def pace_of(options: LlamaOptions) -> Kept:
    """What evaluating and moving conversations of a model took here, over restarts. Raises StartupError."""
    what = of_model(options)
    return Kept(lambda: recall("pace", what), lambda memory: keep("pace", what, memory))


def fingerprint(options: LlamaOptions) -> str:
    """What a saved state depends on: the model and its adapters, by size and both ends of their files, every
    option that its numbers depend on, and llama.cpp's version. Raises StartupError."""
    files = "/".join(_digest(path) for path in options.files)
    return f"{files}/{options.numerics}/{version('llama-cpp-python')}"


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(0)
        head = file.read(PART)
        file.seek(max(0, size - PART))
        return f"{size}-{hashlib.sha256(head + file.read(PART)).hexdigest()}"
