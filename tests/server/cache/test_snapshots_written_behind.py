"""Putting never waits for the disk; memory is bounded whatever the disk does."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from server.cache import carriers
from tests.server.cache.lead import WAIT_S, Make, state_of, until


def test_putting_never_waits_and_flushing_is_bounded(make: Make, path: Path):
    lead = make(path, memory=300, backlog=200)
    assert lead.tier
    lead.tier.gate.clear()
    lead.put(0, 1)
    assert lead.tier.begun.wait(WAIT_S)
    for n in range(1, 5):
        lead.put(n, 1)
    assert lead.snapshots.flush(0.01) == 5
    counters = lead.snapshots.counters()
    assert (counters.memory_bytes, counters.waiting_bytes, counters.writes) == (500, 200, 0)
    assert lead.get(0, 1) == state_of((0, 1)), "what waits for the disk can still be had"
    lead.tier.gate.set()
    lead.flush()
    assert lead.snapshots.counters().memory_bytes == 300
    assert all(lead.get(n, 1) == state_of((n, 1)) for n in range(5))
    assert lead.snapshots.counters().lost == 0


def test_slow_disk_loses_within_bound(make: Make, path: Path):
    lead = make(path, memory=300, backlog=200)
    assert lead.tier
    lead.tier.gate.clear()
    lead.put(0, 1)
    assert lead.tier.begun.wait(WAIT_S)
    for n in range(1, 30):
        lead.put(n, 1)
        assert lead.snapshots.counters().memory_bytes <= 600, "both, and the one that is being written"
    lead.tier.gate.set()
    lead.flush()
    counters = lead.snapshots.counters()
    assert counters.lost == 30 - counters.writes > 20
    assert counters.disk_snapshots == counters.writes == len(lead.files())


def test_huge_snapshot_is_still_written(make: Make, path: Path):
    lead = make(path, memory=10, backlog=10)
    lead.put(1, 2, size=5000)
    lead.flush()
    assert lead.get(1, 2) == state_of((1, 2), size=5000)


def test_shorter_file_goes_after_writing(make: Make, path: Path):
    lead = make(path)
    lead.put(1, 2)
    lead.flush()
    (short,) = lead.files()
    assert lead.tier
    lead.tier.gate.clear()
    lead.put(1, 2, 3)
    assert lead.found(1, 2, 3) == (3, "memory")
    assert lead.files() == [short]
    lead.tier.gate.set()
    lead.flush()
    (long,) = lead.files()
    assert long != short


def test_superseded_write_is_skipped(make: Make, path: Path):
    lead = make(path)
    assert lead.tier
    lead.tier.gate.clear()
    lead.put(9)
    assert lead.tier.begun.wait(WAIT_S)
    for n in range(1, 10):
        lead.put(*range(n))
    assert lead.snapshots.flush(0) == 2
    lead.tier.gate.set()
    lead.flush()
    assert lead.snapshots.counters().writes == len(lead.files()) == 2


def test_lost_longer_write_keeps_shorter(make: Make, path: Path):
    lead = make(path, memory=0, backlog=100)
    lead.put(1, 2)
    lead.flush()
    assert lead.found(1, 2) == (2, "disk")
    assert lead.tier
    lead.tier.begun.clear()
    lead.tier.gate.clear()
    lead.put(7)
    assert lead.tier.begun.wait(WAIT_S)
    lead.put(1, 2, 3)
    lead.put(*range(50, 90))
    assert lead.snapshots.counters().lost == 1
    assert lead.found(1, 2, 3) == (2, "disk")


def test_failed_longer_write_keeps_shorter(make: Make, path: Path):
    lead = make(path, memory=150, disk=500)
    lead.put(1, 2)
    lead.flush()
    lead.put(1, 2, 3, size=1000)
    lead.flush()
    lead.put(9, 9)
    assert lead.get(1, 2, 3) == state_of((1, 2))
    assert lead.snapshots.counters().failed_writes == 1
    assert lead.snapshots.counters().lost == 1


def test_close_drops_pending_writes(make: Make, path: Path):
    lead = make(path)
    assert lead.tier
    lead.tier.gate.clear()
    lead.put(1, 2)
    assert lead.tier.begun.wait(WAIT_S)
    lead.put(3, 4)
    closing = threading.Thread(target=lead.snapshots.close)
    closing.start()
    carriers = lead.snapshots._carriers  # pyright: ignore[reportPrivateUsage]
    assert carriers
    until(lambda: not carriers.writer.open)
    lead.tier.gate.set()
    closing.join(WAIT_S)
    assert not closing.is_alive()
    assert lead.files() == []
    lead.snapshots.close()


@pytest.mark.parametrize("memory", [1000, 250])
def test_writes_yield_to_the_model(make: Make, path: Path, memory: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(carriers, "MOMENT_S", 0.001)
    monkeypatch.setattr(carriers, "PATIENT_S", WAIT_S)
    lead = make(path, memory=memory)
    assert lead.tier
    lead.tier.gate.clear()
    lead.snapshots.at_work(True)
    for n in range(5):
        lead.put(n, 1)
    lead.tier.gate.set()
    if memory > 500:
        assert lead.snapshots.flush(0.1) == 5
        lead.snapshots.at_work(False)
    lead.flush()
    assert lead.snapshots.counters().writes == 5
