"""What the statistics say of the tiers below the KV cache."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class TierCounts:
    """The first five are of now, the others since the start."""

    memory_bytes: int = 0  # waiting_bytes included
    memory_snapshots: int = 0
    waiting_bytes: int = 0  # beyond the budget of memory: they go once they are written
    disk_bytes: int = 0  # of the directory, files of other models included
    disk_snapshots: int = 0  # of this model
    hits: int = 0  # payloads handed out
    loads: int = 0  # payloads read from disk
    failed_loads: int = 0
    writes: int = 0
    failed_writes: int = 0
    evicted_from_memory: int = 0
    evicted_from_disk: int = 0
    lost: int = 0  # evicted from memory before the disk had them
    skipped_files: int = 0
