"""Whether a state has to be put at all."""

from __future__ import annotations

from pathlib import Path

from server.cache.files import RESCAN_NS
from tests.server.cache.lead import WAIT_S, Make


def test_held_snapshot_need_not_be_put(make: Make, path: Path):
    for lead in (make(), make(path), make(path / "none", memory=0)):
        assert not lead.snapshots.holds((1, 2), "")
        lead.put(1, 2, 3)
        lead.flush()
        assert lead.snapshots.holds((1, 2, 3), "")
        assert lead.snapshots.holds((1, 2), "")
        assert not lead.snapshots.holds((1, 2, 3, 4), "")
        assert not lead.snapshots.holds((1, 2, 3), "somebody else")
    restarted = make(path)
    assert restarted.snapshots.holds((1, 2), "")
    assert not restarted.snapshots.holds((1, 2, 3), ""), "it is not in memory yet"
    assert restarted.get(1, 2, 3)
    assert restarted.snapshots.holds((1, 2, 3), "")
    assert not restarted.snapshots.holds((1, 2, 3, 4), "", used=True)


def test_removed_file_holds_nothing(make: Make, path: Path):
    lead = make(path, memory=0)
    lead.put(1, 2, 3)
    lead.flush()
    assert lead.snapshots.holds((1, 2, 3), "")
    for file in path.glob("*.duo"):
        file.unlink()
    lead.clock.ahead += RESCAN_NS
    assert not lead.snapshots.holds((1, 2, 3), "")
    assert not lead.snapshots.holds((1, 2, 3), "", used=True)


def test_untrimmable_states_need_equal_tokens(make: Make):
    lead = make(partial=False)
    lead.put(1, 2)
    lead.put(1, 2, 3, 4)
    held = [lead.snapshots.holds((1, 2, 3, 4)[:n], "") for n in range(1, 5)]
    assert held == [False, True, False, True]


def test_renewing_counts_as_putting_again(make: Make):
    lead = make(memory=200)
    lead.put(1, 1)
    lead.put(2, 2)
    assert lead.snapshots.holds((1, 1), "", used=True)
    lead.put(3, 3)
    assert lead.found(1, 1) == (2, "memory")
    assert lead.found(2, 2) is None


def test_unwritten_snapshot_is_put_again(make: Make, path: Path):
    lead = make(path, disk=50)
    assert lead.tier
    lead.tier.gate.clear()
    lead.put(1, 1)
    assert lead.tier.begun.wait(WAIT_S)
    assert lead.snapshots.holds((1, 1), ""), "on its way"
    lead.tier.gate.set()
    lead.flush()
    assert lead.snapshots.counters().failed_writes == 1
    assert not lead.snapshots.holds((1, 1), "")
    assert not lead.snapshots.holds((1, 1), "", used=True)
