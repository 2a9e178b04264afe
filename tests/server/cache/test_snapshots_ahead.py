"""Snapshots that are read from disk before anybody asks: the latest, once, where there is room."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.checks import check_snapshots
from tests.server.cache.lead import PLENTY, WAIT_S, Ids, Lead, Make, damage, state_of


def kept(make: Make, path: Path, *conversations: Ids, size: int = 100) -> list[Path]:
    """Return the directory that a lead left, the least recently used conversation first."""
    lead = make(path)
    files: list[Path] = []
    for at, tokens in enumerate(conversations):
        lead.put(*tokens, size=size)
        found = lead.match(*tokens)
        assert found
        lead.flush()
        files.append(path / f"{found.key}.duo")
        os.utime(files[-1], ns=(at * 10**9, at * 10**9))
    lead.close()
    return files


def rest(lead: Lead, most: int) -> int:
    """Idle until nothing is left to prepare and return how many snapshots were read."""
    n = 0
    while lead.snapshots.fetch_ahead(most, lead.snapshots.free_bytes):
        assert lead.ready.acquire(timeout=WAIT_S), "on_ready was not called"
        n += 1
    return n


def test_latest_snapshots_are_read_ahead(make: Make, path: Path):
    kept(make, path, (1, 1), (2, 2), (3, 3), (4, 4))
    lead = make(path)
    assert rest(lead, 2) == 2
    tiers = [lead.found(n, n) for n in (1, 2, 3, 4)]
    assert tiers == [(2, "disk"), (2, "disk"), (2, "memory"), (2, "memory")]
    assert lead.get(4, 4) == state_of((4, 4))
    counters = lead.snapshots.counters()
    assert (counters.loads, counters.hits) == (2, 1)
    assert rest(lead, 2) == 0
    assert rest(lead, 99) == 0, "what they were is settled at the first idle moment"
    check_snapshots(lead.snapshots)


def test_latest_use_survives_restart(make: Make, path: Path):
    files = kept(make, path, (1, 1), (2, 2), (3, 3))
    assert make(path).snapshots.conversations(most=2) == [(3, 3), (2, 2)]
    os.utime(files[0], ns=(10**12, 10**12))
    lead = make(path)
    assert lead.snapshots.conversations(most=9) == [(1, 1), (3, 3), (2, 2)]
    assert rest(lead, 1) == 1
    assert lead.found(1, 1) == (2, "memory")


def test_reading_ahead_is_no_use(make: Make, path: Path):
    files = kept(make, path, (1, 1), (2, 2), (3, 3))
    times = [file.stat().st_mtime_ns for file in files]
    lead = make(path)
    assert rest(lead, 3) == 3
    assert [file.stat().st_mtime_ns for file in files] == times
    assert lead.snapshots.conversations(most=3) == [(3, 3), (2, 2), (1, 1)]
    assert lead.snapshots.counters().hits == 0


def test_half_of_the_room_stays_free(make: Make, path: Path):
    kept(make, path, *((n, n) for n in range(1, 9)))
    for memory, n_read in ((0, 0), (199, 0), (200, 1), (700, 3), (1600, 8)):
        lead = make(path, memory=memory)
        assert rest(lead, 8) == n_read
        assert lead.snapshots.counters().memory_bytes == 100 * n_read <= memory // 2
        assert [n for n in range(1, 9) if lead.found(n, n) == (2, "memory")] == list(range(9 - n_read, 9))
        lead.close()


def test_oversized_read_ahead_is_skipped(make: Make, path: Path):
    kept(make, path, (1, 1))
    kept(make, path, (2, 2), size=5000)
    (file,) = (file for file in path.iterdir() if file.stat().st_size > 5000)
    os.utime(file, ns=(10**12, 10**12))
    lead = make(path, memory=1000)
    assert rest(lead, 2) == 1
    assert lead.found(1, 1) == (2, "memory")
    assert lead.found(2, 2) == (2, "disk")


def test_read_ahead_evicts_nothing(make: Make, path: Path):
    kept(make, path, (1, 1), (2, 2))
    lead = make(path, memory=400)
    assert rest(lead, 2) == 2
    for n in range(5, 9):
        lead.put(*range(n * 100, n * 100 + 50))
    assert lead.found(1, 1) == lead.found(2, 2) == (2, "disk")
    lead.snapshots.forget(lead.snapshots._catalogue.latest(1)[0])  # pyright: ignore[reportPrivateUsage]
    assert rest(lead, 2) == 0
    assert lead.snapshots.counters().loads == 2


def test_later_snapshot_takes_the_room(make: Make, path: Path):
    kept(make, path, (1, 1))
    lead = make(path, memory=250)
    assert lead.tier
    lead.tier.gate.clear()
    assert lead.snapshots.fetch_ahead(1, lead.snapshots.free_bytes)
    assert lead.snapshots.free_bytes == 150, "what is coming has its place"
    assert lead.snapshots.fetch_ahead(1, lead.snapshots.free_bytes), "not at rest as long as it is coming"
    lead.put(*range(50))
    lead.put(*range(100, 150))
    lead.tier.gate.set()
    assert lead.ready.acquire(timeout=WAIT_S)
    lead.flush()
    assert lead.found(1, 1) == (2, "disk")
    assert lead.found(*range(50)) == lead.found(*range(100, 150)) == (50, "memory")
    assert lead.snapshots.free_bytes == 50
    assert lead.get(1, 1) == state_of((1, 1)), "it is read when somebody asks"


def test_reading_ahead_goes_one_by_one(make: Make, path: Path):
    kept(make, path, (1, 1), (2, 2), (3, 3))
    lead = make(path, memory=600)
    assert lead.tier
    lead.tier.gate.clear()
    for _ in range(3):
        assert lead.snapshots.fetch_ahead(3, lead.snapshots.free_bytes)
    assert [lead.found(n, n) for n in (1, 2, 3)] == [(2, "disk"), (2, "disk"), (2, "loading")]
    found = lead.match(3, 3)
    assert found
    lead.snapshots.fetch(found.key)
    assert lead.snapshots.fetch_ahead(3, lead.snapshots.free_bytes), "the next one waits"
    assert lead.found(2, 2) == (2, "disk")
    for n in range(5, 9):
        lead.put(*range(n * 100, n * 100 + 50), size=150)  # no room is left for it
    lead.tier.gate.set()
    assert lead.ready.acquire(timeout=WAIT_S)
    assert lead.found(3, 3) == (2, "memory")
    assert lead.snapshots.get(found.key) == state_of((3, 3))
    assert lead.snapshots.counters().loads == 1


def test_damage_is_met_once(make: Make, path: Path, caplog: pytest.LogCaptureFixture):
    files = kept(make, path, (1, 1), (2, 2))
    lead = make(path)
    damage(files[1])
    assert rest(lead, 2) == 2
    assert lead.found(2, 2) is None
    assert lead.found(1, 1) == (2, "memory")
    assert len(caplog.records) == 1
    assert lead.snapshots.free_bytes == PLENTY - 100
    check_snapshots(lead.snapshots)


def test_vanished_file_is_no_error(make: Make, path: Path):
    (file,) = kept(make, path, (1, 1))
    lead = make(path, memory=250)
    assert lead.tier
    lead.tier.gate.clear()
    assert lead.snapshots.fetch_ahead(1, lead.snapshots.free_bytes)
    lead.put(*range(50))
    lead.put(*range(100, 150))
    other = file.with_suffix(".else")
    file.rename(other)
    assert lead.match(7) is None  # has looked at the directory
    other.rename(file)
    lead.tier.gate.set()
    assert lead.ready.acquire(timeout=WAIT_S)
    lead.flush()
    assert lead.get(1, 1) == state_of((1, 1))


def test_sharing_leads_read_for_themselves(make: Make, path: Path):
    kept(make, path, (1, 1), (2, 2))
    one, two = make(path), make(path)
    assert rest(one, 2) == rest(two, 2) == 2
    two.put(2, 2, 3)
    two.flush()
    assert one.get(2, 2, 3) == state_of((2, 2, 3))
    assert two.get(1, 1) == state_of((1, 1))
    for lead in (one, two):
        assert rest(lead, 2) == 0
        lead.flush()


def test_no_disk_means_no_reading(make: Make):
    lead = make()
    lead.put(1, 1)
    assert not lead.snapshots.fetch_ahead(4, PLENTY)
