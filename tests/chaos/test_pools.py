"""A pool of leads in earnest, with toys for models; `make chaos` plays many seeds."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.pools import faults_of, live_pool, play, undisturbed

SEED = 0  # two drains, and a kill


def test_schedules_kill_and_drain_every_lead():
    faults = [fault for seed in range(200) for fault in faults_of(seed)]
    assert {(fault.lead, fault.kind) for fault in faults} == {
        (lead, kind) for lead in range(3) for kind in ("kill", "drain")
    }


@pytest.mark.redis
@pytest.mark.timeout(240)
def test_replies_outlive_their_leads(tmp_path: Path):
    with live_pool(tmp_path) as pool:
        played = play(pool, undisturbed(pool), SEED)
        assert played.problems == []
        assert played.gaps["kill"]
        assert played.gaps["drain"]
