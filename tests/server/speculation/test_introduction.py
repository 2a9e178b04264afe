"""A drafter that joins works until a guess of it was right, whether guesses pay or not, and not for ever."""

from __future__ import annotations

import pytest

from server.engine.proposer import Proposal
from server.speculation.gating.costs import StepCosts
from server.speculation.gating.credit import CREDIT
from server.speculation.groups import FIRST, INTRODUCED_S, Groups, StepCharge
from server.speculation.sources.drafter_record import DrafterRecord
from server.speculation.sources.remote import RemoteDrafters
from tests.memory_bus import MemoryPool
from tests.server.speculation.test_groups import STEP, Scene, join, unknown, watched, with_a_drafter


def named(remote: RemoteDrafters, id: str) -> DrafterRecord:
    return next(record for record in remote.drafters() if record.presence.id == id)


@pytest.mark.parametrize("at", [1, 20, 99])
def test_one_that_joins_those_that_rest_works_alone_until_a_guess_of_it_is_right(at: int):
    """And not for longer than it may cost. at: its step with that guess; each costs a token."""
    pool = MemoryPool()
    remote, first = with_a_drafter(pool)
    groups = Groups(remote)

    def work(n: int, charge: StepCharge, one: DrafterRecord, at: int = -1) -> tuple[int, int]:
        """n steps, in the at-th of which with that drafter it has a right guess. Returns in how many it may
        work, and in how many the first one may."""
        n_on, n_first = 0, 0
        for _ in range(n):
            groups.serve(1, unknown)
            n_on, n_first = n_on + (not one.resting), n_first + (not first.resting)
            if n_on == at:
                remote.count({one.presence.id: (1, 1)})
            groups.stepped(STEP, charge)
        return n_on, n_first

    dear = StepCharge(crowded=1.0, token_s=INTRODUCED_S / 32)
    assert work(FIRST + 20, dear, first) == (CREDIT + 1, CREDIT + 1)
    join(pool, "b", "here")
    remote.drain()
    second = named(remote, "b")
    assert work(FIRST, StepCharge(), second) == (0, 0), "what steps take without it"
    n_on = min(max(at, CREDIT + 1), 32)
    assert work(100, dear, second, at) == (n_on, max(0, n_on - at))


@pytest.mark.parametrize("host", ["here", "elsewhere"])
def test_a_drafter_that_joins_works_until_its_first_right_guess_although_none_can_pay(host: str):
    pool = MemoryPool()
    remote, first = with_a_drafter(pool)
    groups = Groups(remote)

    def serve() -> None:
        groups.serve(1, lambda _: [0.0, 1.0, 2.0, 3.0])

    for _ in range(FIRST + 1):
        serve()
        groups.stepped(STEP, StepCharge())
    assert first.resting
    assert not groups.introduced
    join(pool, "b", host)
    remote.drain()
    second = named(remote, "b")
    for _ in range(FIRST):
        serve()
        groups.stepped(STEP, StepCharge())
    second.n_assigned = 1
    serve()
    assert groups.introduced
    assert not second.resting
    assert first.resting
    counts = [0, 1, 0]
    offer = Proposal((1, 2, 3), (-1, 0, -1), ("a", "b", "b"))
    groups.introduce([Proposal((1,), (-1,), ("a",)), offer, offer], counts)
    assert counts == [0, 2, 0], "one row more shows a guess of it"
    second.counts["accepted"] += 1
    groups.stepped(STEP, StepCharge())
    serve()
    assert not groups.introduced
    assert second.resting


def test_a_liar_that_joins_costs_no_more_than_its_introduction_where_no_row_pays():
    """Its guesses are verified until then, each for the time of a plain step."""
    plain_s = INTRODUCED_S / 32
    costs = StepCosts(32, {1: plain_s, 32: 32 * plain_s})
    scene = Scene(lies=True, in_time=True, kernel="elsewhere", costs=costs)
    scene.backend.plain_s, scene.backend.wider = plain_s, 1.0
    scene.beside(400)
    [record] = scene.speculator.drafters()
    assert 16 < record.counts["drafted"] <= 32


def test_after_one_that_is_introduced_has_left_the_others_go_on():
    pool = MemoryPool()
    remote, first = with_a_drafter(pool)
    groups = Groups(remote)
    watched(groups)

    def rests(charge: StepCharge, n: int) -> bool:
        for _ in range(n):
            groups.serve(1, unknown)
            groups.stepped(STEP, charge)
        return first.resting

    assert rests(StepCharge(crowded=1.0), FIRST)
    bus = join(pool, "b", "here")
    remote.drain()
    assert rests(StepCharge(), FIRST + 9), "another one joins"
    assert groups.introduced
    bus.close()
    pool.pump()
    remote.drain()
    assert not rests(StepCharge(), 2 * FIRST)
    assert not groups.introduced
