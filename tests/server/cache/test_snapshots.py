"""Host memory and disk below the KV cache: what is put is found again, and the least worthy goes first."""

from __future__ import annotations

import threading
from pathlib import Path

from tests.checks import check_snapshots
from tests.server.cache.lead import WAIT_S, Make, state_of, until


def test_snapshot_is_found_by_prefix(make: Make):
    lead = make()
    lead.put(1, 2, 3)
    lead.put(1, 2, 4, 5)
    assert lead.found(1, 2, 3, 9) == (3, "memory")
    assert lead.found(1, 2, 4) == (3, "memory")
    assert lead.found(7) is None
    assert lead.get(1, 2, 4, 5, 6) == state_of((1, 2, 4, 5))


def test_salts_never_meet(make: Make, path: Path):
    lead = make(path)
    lead.put(1, 2, 3, salt="a")
    assert lead.found(1, 2, 3, salt="b") is None
    lead = lead.restarted()
    assert lead.found(1, 2, 3, salt="b") is None
    assert lead.found(1, 2, 3) is None
    assert lead.get(1, 2, 3, salt="a") == state_of((1, 2, 3), "a")
    lead.close()


def test_only_longest_snapshot_is_kept(make: Make, path: Path):
    lead = make(path)
    lead.put(1, 2)
    lead.flush()
    lead.put(1, 2, 3, 4)
    lead.flush()
    lead.put(1, 2, 3)
    lead.flush()
    assert lead.snapshots.counters().memory_snapshots == 1
    assert len(lead.files()) == 1
    assert lead.found(1, 2, 3) == (3, "memory")


def test_untrimmable_states_are_used_whole(make: Make, path: Path):
    lead = make(path, partial=False)
    lead.put(1, 2)
    lead.put(1, 2, 3, 4)
    lead.flush()
    assert len(lead.files()) == 2
    assert lead.get(1, 2, 3) == state_of((1, 2))
    assert lead.get(1, 2, 3, 4, 5) == state_of((1, 2, 3, 4))
    assert lead.found(1) is None


def test_side_request_snapshot_goes_first(make: Make):
    lead = make(memory=350)
    lead.put(*range(100))
    lead.put(*range(200, 300))
    lead.put(1000, 1001)
    lead.put(*range(400, 500))
    assert lead.found(1000, 1001) is None
    assert lead.found(*range(100)) == (100, "memory")
    lead.get(*range(100))
    lead.put(*range(600, 700))
    assert lead.found(*range(200, 300)) is None, "of equal length, the one that was used longest ago"
    assert lead.found(*range(100)) == (100, "memory")
    counters = lead.snapshots.counters()
    assert (counters.evicted_from_memory, counters.lost, counters.memory_bytes) == (2, 0, 300)


def test_evicted_snapshot_returns_from_disk(make: Make, path: Path):
    lead = make(path, memory=250)
    for n in range(5):
        lead.put(n, 1, 2)
    lead.flush()
    assert lead.snapshots.counters().disk_snapshots == 5
    assert lead.found(0, 1, 2) == (3, "disk")
    assert lead.get(0, 1, 2) == state_of((0, 1, 2))
    assert lead.woken == ["duo-cache-read"]
    assert lead.found(0, 1, 2) == (3, "memory")
    check_snapshots(lead.snapshots)


def test_memory_beats_disk_at_ties(make: Make, path: Path):
    lead = make(path)
    for n in range(9):
        lead.put(1, 2, 3, 10 + n)
    lead = lead.restarted()
    found = lead.match(1, 2, 3, 14)
    assert found
    assert lead.fetch(found.key) == state_of((1, 2, 3, 14))
    assert lead.found(1, 2, 3, 99) == (3, "memory")
    assert lead.found(1, 2, 3, 15) == (4, "disk")
    lead.close()


def test_a_key_is_loading_until_on_ready(make: Make, path: Path):
    lead = make(path)
    lead.put(1, 2)
    lead = lead.restarted()
    found = lead.match(1, 2)
    assert found
    assert lead.tier
    lead.tier.gate.clear()
    for _ in range(3):
        lead.snapshots.fetch(found.key)
        assert lead.snapshots.get(found.key) is None
    assert lead.found(1, 2) == (2, "loading")
    lead.tier.gate.set()
    assert lead.ready.acquire(timeout=WAIT_S)
    assert lead.found(1, 2) == (2, "memory")
    counters = lead.snapshots.counters()
    assert (counters.loads, counters.hits) == (1, 0)
    lead.close()


def test_fetched_snapshot_stays_without_budget(make: Make, path: Path):
    lead = make(path, memory=0)
    lead.put(1)
    lead.put(*range(50, 90))
    lead.flush()
    assert lead.snapshots.counters().memory_bytes == 0
    assert lead.get(1) == state_of((1,))
    assert lead.snapshots.counters().memory_bytes == 0
    assert lead.get(*range(50, 90)) == state_of(tuple(range(50, 90)))


def test_fetched_snapshot_outlives_read_ahead(make: Make, path: Path):
    lead = make(path)
    lead.put(1)
    lead.put(2)
    lead.flush()
    lead.close()
    lead = make(path, memory=250)
    lead.put(*range(100, 200))
    lead.put(*range(200, 300))
    for token in (1, 2):
        found = lead.match(token)
        assert found
        lead.snapshots.fetch(found.key)
    for _ in range(2):
        assert lead.ready.acquire(timeout=WAIT_S)
    assert lead.found(1) == lead.found(2) == (1, "memory")


def test_used_in_memory_is_used_on_disk(make: Make, path: Path):
    lead = make(path, disk=1000)
    for n in range(3):
        lead.put(n, n, size=200)
        lead.flush()
    found = lead.match(0, 0)
    assert found
    file = path / f"{found.key}.duo"
    before = file.stat().st_mtime_ns
    assert lead.snapshots.get(found.key)
    until(lambda: file.stat().st_mtime_ns > before)
    lead.close()
    lead = make(path, disk=file.stat().st_size)
    assert lead.files() == [file]


def test_no_disk_means_no_threads(make: Make):
    before = set(threading.enumerate())
    lead = make(memory=100)
    lead.put(1)
    lead.put(2)
    lead.flush()
    found = lead.match(2)
    assert found
    lead.snapshots.fetch(found.key)
    lead.snapshots.forget(found.key)
    assert set(threading.enumerate()) <= before
    assert lead.snapshots.counters().memory_snapshots == 0
