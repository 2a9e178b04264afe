"""A directory that others write to, damage and empty."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.checks import check_snapshots
from tests.server.cache.lead import Make, damage, state_of, until


def test_rewritten_file_is_found(make: Make, path: Path):
    """The news of the removal arrives after the file is back."""
    one, two = make(path, memory=0, disk=450), make(path, memory=0, disk=450)
    for tokens in ((1, 1), (2, 2)):
        one.put(*tokens)
        one.flush()
    assert one.found(1, 1) == (2, "disk")
    assert one.tier
    one.tier.telling.clear()
    one.put(3, 3)
    until(lambda: two.match(3, 3) is not None)
    assert two.match(1, 1) is None
    two.put(1, 1)
    two.flush()
    one.match(1, 1)
    one.tier.telling.set()
    one.flush()
    assert one.get(1, 1) == state_of((1, 1))


def test_a_damaged_payload_vanishes_with_a_warning(make: Make, path: Path, caplog: pytest.LogCaptureFixture):
    lead = make(path)
    lead.put(1, 2)
    lead.put(5, 6)
    lead = lead.restarted()
    for file in lead.files():
        damage(file)
    caplog.clear()
    assert lead.get(1, 2) is None
    assert lead.found(1, 2) is None
    assert lead.get(5, 6) is None
    assert lead.files() == []
    assert len(caplog.records) == 2
    counters = lead.snapshots.counters()
    assert (counters.failed_loads, counters.skipped_files, counters.loads) == (2, 2, 0)
    lead.put(1, 2)
    lead = lead.restarted()
    assert lead.get(1, 2) == state_of((1, 2))
    lead.close()


def test_damaged_longer_file_yields(make: Make, path: Path):
    one, two = make(path, partial=False), make(path)
    one.put(1, 2)
    one.put(1, 2, 3, 4)
    one.flush()
    found = two.match(1, 2, 3, 4)
    assert found
    assert found.length == 4
    damage(path / f"{found.key}.duo")
    assert two.fetch(found.key) is None
    assert two.get(1, 2, 3, 4) == state_of((1, 2))


def test_other_leads_files_come_and_go(make: Make, path: Path, caplog: pytest.LogCaptureFixture):
    one, two = make(path), make(path)
    one.put(1, 2)
    one.flush()
    assert two.get(1, 2) == state_of((1, 2))
    one.put(1, 2, 3)
    one.put(7, 7)
    one.flush()
    assert two.get(1, 2, 3) == state_of((1, 2, 3))
    found = two.match(7, 7)
    assert found
    one.snapshots.forget(found.key)
    one.flush()
    assert two.fetch(found.key) is None
    assert two.found(7, 7) is None
    assert caplog.records == []
    for lead in (one, two):
        lead.flush()


def test_just_replaced_file_is_found(make: Make, path: Path):
    """The longer file is as young as the look that missed it."""
    one, two = make(path), make(path)
    one.put(1, 2)
    one.flush()
    found = two.match(1, 2)
    assert found
    one.put(1, 2, 3, 4)
    one.flush()
    assert two.fetch(found.key) is None
    longer = two.snapshots.match((1, 2, 3))
    assert longer
    assert longer.length == 3
    assert two.fetch(longer.key) == state_of((1, 2, 3, 4))


def test_sharing_leads_share_one_file(make: Make, path: Path):
    one, two = make(path), make(path)
    for lead in (one, two):
        lead.put(1, 2, 3)
    for lead in (one, two):
        lead.flush()
    assert len(one.files()) == 1


def test_a_directory_emptied_from_outside_is_noticed(make: Make, path: Path):
    lead = make(path, memory=100)
    for n in range(4):
        lead.put(n, n)
    lead.flush()
    for file in lead.files():
        file.unlink()
    assert lead.found(0, 0) is None
    assert lead.snapshots.counters().disk_snapshots == 0
    assert lead.found(3, 3) == (2, "memory")
    check_snapshots(lead.snapshots)


def test_forgotten_is_gone_from_all_tiers(make: Make, path: Path):
    lead = make(path)
    lead.put(1, 2)
    lead.flush()
    found = lead.match(1, 2)
    assert found
    lead.snapshots.forget(found.key)
    lead.snapshots.forget("nothing")
    lead.flush()
    assert lead.files() == []
    assert lead.found(1, 2) is None


def test_failing_callback_is_logged(
    make: Make, path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    lead = make(path)
    lead.put(1, 2)
    lead.put(3, 4)
    lead = lead.restarted()
    keys = [found.key for tokens in ((1, 2), (3, 4)) if (found := lead.match(*tokens))]
    monkeypatch.setattr(lead.ready, "release", lambda: 1 // 0)
    lead.snapshots.fetch(keys[0])
    until(lambda: bool(caplog.records))
    monkeypatch.undo()
    assert lead.fetch(keys[1]) == state_of((3, 4))
    assert lead.snapshots.get(keys[0]) == state_of((1, 2))
    lead.close()
