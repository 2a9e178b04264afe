"""Places and turns among tenants."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress

import pytest

from server.errors import BusyError
from server.tenants import FairSemaphore, Places, Turns

WAIT_S = 20


def flooded(places: Places, *tenants: str) -> list[int]:
    """Return the places of each tenant once none gets another, all asking in turn."""
    asking = list(tenants)
    while asking:
        for tenant in list(asking):
            try:
                places.take(tenant)
            except BusyError:
                asking.remove(tenant)
    return [places.held[tenant] for tenant in tenants]


def test_flooding_tenants_leave_places():
    assert flooded(Places(64), "anna") == [32]
    assert flooded(Places(64), "anna", "bert", "carl") == [16, 16, 16]
    places = Places(64)
    assert flooded(places, "anna") == [32]
    assert flooded(places, "bert") == [16]
    assert flooded(places, "carl") == [8]


def test_no_tenants_take_all_places():
    places = Places(64)
    assert flooded(places, "") == [64]
    with pytest.raises(BusyError):
        places.take("anna")


def test_free_places_serve_anyone():
    places = Places(10, at_once=8)
    assert flooded(places, "anna") == [8]
    assert flooded(places, "bert") == [1]
    assert flooded(places, "carl") == [1]


def test_returned_place_frees_once():
    places = Places(4)
    [first, _] = [places.take("anna") for _ in range(2)]
    with pytest.raises(BusyError, match="this API key"):
        places.take("anna")
    for _ in range(2):
        first.give_back()
    assert (places.n_taken, places.held["anna"]) == (1, 1)
    places.take("anna")


def test_closed_shares_refuse_politely():
    places = Places(4)
    places.closed = True
    with pytest.raises(BusyError) as raised:
        places.take()
    assert raised.value.status == 503


def test_longest_waiting_equal_goes_first():
    turns = Turns()
    for tenant in ("anna", "bert", "anna"):
        turns.took(tenant)
    ranked = sorted(["anna", "bert", "carl"], key=lambda tenant: turns.rank(tenant, {"carl": 1}))
    assert ranked == ["bert", "anna", "carl"]


async def waiting_in(
    one: FairSemaphore, tenants: Iterable[str]
) -> tuple[list[asyncio.Task[None]], list[str]]:
    """Return a waiting task for each tenant, and the list of those that entered.

    Each notes its entrance and stays.
    """
    entered = list[str]()

    async def enter(tenant: str) -> None:
        await one.enter(tenant)
        entered.append(tenant)

    tasks = [asyncio.ensure_future(enter(tenant)) for tenant in tenants]
    await asyncio.sleep(0)
    return tasks, entered


async def test_flood_keeps_nobody_waiting():
    one = FairSemaphore(1, Places(64))
    tasks, entered = await waiting_in(one, "aaaaab")
    for _ in range(5):
        one.leave(entered[-1])
        await asyncio.sleep(0)
    await asyncio.wait_for(asyncio.gather(*tasks), WAIT_S)
    assert "".join(entered) == "abaaaa"


async def test_without_tenants_who_comes_first_enters_first():
    one = FairSemaphore(2, Places(2))
    tasks, entered = await waiting_in(one, [""] * 4)
    assert (len(entered), one.n_waiting) == (2, 2)
    with pytest.raises(BusyError):
        await one.enter()
    for task in tasks[2:]:
        one.leave()
        await asyncio.wait_for(task, WAIT_S)


@pytest.mark.parametrize("granted", [False, True])
async def test_cancelled_waiter_blocks_nobody(granted: bool):
    one = FairSemaphore(1, Places(3))
    [_, left, *others], entered = await waiting_in(one, "aabc")
    if granted:
        one.leave("a")  # it is another's turn, who is cancelled before it hears of that
        others[0].cancel()
    left.cancel()
    with suppress(asyncio.CancelledError):
        await left
    if not granted:
        one.leave("a")
        await asyncio.wait_for(others[0], WAIT_S)
        one.leave("b")
    await asyncio.wait_for(others[1], WAIT_S)
    one.leave("c")
    await asyncio.wait_for(one.enter("a"), WAIT_S)
    assert one.n_waiting == 0
    assert entered[-1] == "c"
