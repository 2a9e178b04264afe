"""A schedule of faults in earnest, with toys for models; `make chaos` plays many, also with models."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import pytest

from tests.chaos.faults import FAULTS
from tests.chaos.schedule import Chaos, schedule
from tests.chaos.system import live

SEED = 1004  # of five faults in 2.2 s: of a drafter, Redis, the disk and clients


def test_schedules_separate_faults_of_targets():
    schedules = [schedule(seed) for seed in range(200)]
    assert {turn.fault.name for turns in schedules for turn in turns} == {fault.name for fault in FAULTS}
    for turns in schedules:
        for one, other in combinations(turns, 2):
            assert one.fault.target != other.fault.target or one.ends_s <= other.at_s


@pytest.mark.redis
@pytest.mark.timeout(240)
def test_faults_leave_replies_and_no_trace(tmp_path: Path):
    with live(tmp_path) as system:
        chaos = Chaos(system)
        chaos.warm_up()
        assert chaos.play(schedule(SEED)) == []
        assert chaos.n_accepted > 0
        assert system.get("/size")["bytes"] > 0
