"""A drafter that joins works until a guess of it was right, whether guesses pay or not, and not for ever."""

from __future__ import annotations

import pytest

from server.speculation.drafter_host import BASELINE_STEPS, CREDIT, TRIAL_S, Charge
from server.speculation.sources.drafter_record import DrafterRecord
from server.speculation.sources.remote import RemoteDrafters
from server.speculation.step_times import StepTimes
from tests.memory_bus import MemoryPool
from tests.server.speculation.ledger_scene import Taught
from tests.server.speculation.test_groups import Scene, join, with_a_drafter


def named(remote: RemoteDrafters, id: str) -> DrafterRecord:
    return next(record for record in remote.drafters() if record.presence.id == id)


@pytest.mark.parametrize("at", [1, 20, 99])
def test_newcomer_works_alone_until_right(at: int):
    """It may not exceed its cost limit. at: its step with the right guess; each step costs a token."""
    pool = MemoryPool()
    remote, first = with_a_drafter(pool)
    taught = Taught(remote)

    def work(n: int, charge: Charge, one: DrafterRecord, at: int = -1) -> tuple[int, int]:
        """Take n steps and return in how many the new drafter may work, and in how many the first.

        In the at-th step with the new one it has a right guess.
        """
        n_on, n_first = 0, 0
        for _ in range(n):
            taught.serve()
            n_on, n_first = n_on + (not one.paused), n_first + (not first.paused)
            if n_on == at:
                remote.count({one.presence.id: (1, 1)})
            taught.learn(charge)
        return n_on, n_first

    dear = Charge(crowded=1.0, token_s=TRIAL_S / 31.5)
    assert work(BASELINE_STEPS + 20, dear, first) == (CREDIT + 1, CREDIT + 1)
    join(pool, "b", "here")
    remote.drain()
    second = named(remote, "b")
    assert work(BASELINE_STEPS, Charge(), second) == (0, 0), "what steps take without it"
    n_on = min(max(at, CREDIT + 1), 32)
    assert work(100, dear, second, at) == (n_on, max(0, n_on - at))


@pytest.mark.parametrize("host", ["here", "elsewhere"])
def test_newcomer_works_though_nothing_pays(host: str):
    pool = MemoryPool()
    remote, first = with_a_drafter(pool)
    taught = Taught(remote, seconds=[1.0, 2.5, 4.0])

    for _ in range(BASELINE_STEPS + 1):
        taught.serve()
        taught.learn(Charge())
    assert first.paused
    assert not taught.ledger.on_trial
    join(pool, "b", host)
    remote.drain()
    second = named(remote, "b")
    for _ in range(BASELINE_STEPS):
        taught.serve()
        taught.learn(Charge())
    second.n_assigned = 1
    taught.serve()
    assert taught.ledger.on_trial
    assert not second.paused
    assert first.paused
    second.counts["accepted"] += 1
    taught.learn(Charge())
    taught.serve()
    assert not taught.ledger.on_trial
    assert second.paused


def test_lying_newcomer_costs_its_introduction():
    """Its guesses are verified until then, each for the time of a plain step."""
    undrafted_s = TRIAL_S / 32
    times = StepTimes(32, {1: undrafted_s, 32: 32 * undrafted_s})
    scene = Scene(lies=True, in_time=True, kernel="elsewhere", times=times)
    scene.backend.undrafted_s, scene.backend.wider = undrafted_s, 1.0
    scene.beside(400)
    [record] = scene.speculator.drafters()
    assert 16 < record.counts["drafted"] <= 32


def test_left_newcomer_releases_others():
    pool = MemoryPool()
    remote, first = with_a_drafter(pool)
    taught = Taught(remote)
    taught.warm_up(BASELINE_STEPS)

    def rests(charge: Charge, n: int) -> bool:
        for _ in range(n):
            taught.serve()
            taught.learn(charge)
        return first.paused

    assert rests(Charge(crowded=1.0), BASELINE_STEPS)
    bus = join(pool, "b", "here")
    remote.drain()
    assert rests(Charge(), BASELINE_STEPS + 9), "another one joins"
    assert taught.ledger.on_trial
    bus.close()
    pool.pump()
    remote.drain()
    assert not rests(Charge(), 2 * BASELINE_STEPS)
    assert not taught.ledger.on_trial
