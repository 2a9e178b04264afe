"""An engine that makes no progress: what is told, to whom, and what is left of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from server.cache.files import DiskTier
from server.cache.snapshots import Snapshots
from server.engine import thread as engine_thread
from server.engine.engine import Engine
from server.engine.events import Failed
from server.engine.thread import Bounds, EngineThread
from server.engine.watchdog import STEP_STUCK_S, Watchdog
from server.errors import LostModelError
from server.lead import tiers as lead_tiers
from server.lead.tiers import save_copies
from tests.fake_backend import FakeModel
from tests.gated import Gated
from tests.support import NoProposer, request


class Hours:
    """A clock on which a second passes at each look."""

    now = 0.0

    def __call__(self) -> float:
        self.now += 1
        return self.now


def watching(limit_s: float | None = None) -> Watchdog:
    one = Watchdog(limit_s)
    one.clock = Hours()
    return one


def looks(one: Watchdog, n: int, *, work: bool = True) -> None:
    for _ in range(n):
        one.check(work)


def test_watchdog_sleeps_during_loading():
    one = watching(5)
    looks(one, 1000)
    assert not one.gives_up
    one.step()
    one.sleep()
    looks(one, 1000)
    assert not one.gives_up
    assert one.warning is None


def test_stuck_step_is_given_up():
    one = watching(2 * STEP_STUCK_S)
    one.step()
    looks(one, int(STEP_STUCK_S) + 1)
    assert one.warning is None
    one.check(True)
    assert one.warning == "no step of the model has finished for 61 s"
    assert not one.gives_up
    looks(one, int(STEP_STUCK_S))
    assert one.gives_up
    one.step()
    one.check(True)
    assert one.warning is None
    assert not one.gives_up


def test_idle_engine_is_never_stuck():
    one = watching(5)
    one.step()
    looks(one, 1000, work=False)
    assert not one.gives_up
    never = watching()
    never.step()
    looks(never, 10_000)
    assert never.warning
    assert not never.gives_up


def test_stopped_process_is_not_stuck():
    one, clock = watching(5), Hours()
    one.clock = clock
    one.step()
    looks(one, 2)
    clock.now += 86_400
    one.check(True)
    assert not one.gives_up
    assert one.warning is None


async def test_endless_thread_is_abandoned(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(engine_thread, "JOIN_S", 0.001)
    with Gated(FakeModel(eog_rate=0.0)) as backend:
        thread = engine_of(backend)
        thread.start()
        reply = thread.submit(request(max_tokens=8))
        await asyncio.to_thread(backend.until_step, 1)
        with pytest.raises(LostModelError, match="no step of the model has finished for"):
            await thread.stop()
        assert reply.id in thread._generations  # pyright: ignore[reportPrivateUsage]
    await thread.stop()


def engine_of(backend: Gated, tiers: Snapshots | None = None) -> EngineThread:
    def make(emit: object) -> Engine:
        engine = Engine(backend, NoProposer(), emit)  # pyright: ignore[reportArgumentType]
        if tiers is not None:
            engine.residence.save_to(tiers)
        return engine

    thread = EngineThread(make, n_ctx=backend.n_ctx, bounds=Bounds(step_s=2))
    thread.watchdog.clock = Hours()
    return thread


def has_copies(engine: Engine) -> bool:
    return bool(engine.residence.copies)


async def until_engine(thread: EngineThread, holds: Callable[[Engine], bool]) -> None:
    """Wait until `holds` is true of the engine, checked on its own thread."""
    loop = asyncio.get_running_loop()
    while True:
        answer: asyncio.Future[bool] = loop.create_future()
        thread.command(partial(tell, loop, answer, holds))
        if await answer:
            return


def tell(
    loop: asyncio.AbstractEventLoop,
    answer: asyncio.Future[bool],
    holds: Callable[[Engine], bool],
    engine: Engine,
) -> None:
    loop.call_soon_threadsafe(answer.set_result, holds(engine))


async def test_conversations_that_rested_come_back_from_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(lead_tiers, "PARK_S", 0.001)  # the thread cannot hear

    def tiers() -> Snapshots:
        disk = DiskTier(tmp_path, budget_bytes=1 << 24, fingerprint="toy")
        return Snapshots(memory_bytes=1 << 24, disk=disk)

    before = tiers()
    said = request(bytes(range(1, 101)), max_tokens=8)
    more = request([*said.prompt, 101], max_tokens=1)  # too little to be written before it has to leave

    def written(_: Engine) -> bool:
        return before.n_saved(said.prompt) > 0

    with Gated(FakeModel(eog_rate=0.0), n_seqs=4) as backend:
        thread = engine_of(backend, before)
        thread.start()
        backend.allow(50)
        for turn, rested in ((said, written), (more, has_copies)):
            events = [event async for some in thread.submit(turn) for event in some]
            assert not isinstance(events[-1], Failed)
            await until_engine(thread, rested)
        while backend.permits.acquire(blocking=False):
            pass
        n_begun = backend.n_begun
        reply = thread.submit(request(b"something else", max_tokens=8))
        await asyncio.to_thread(backend.until_step, n_begun + 1)
        while (lost := thread.lost()) is None:
            thread.check()
        thread.abandon(lost)
        [events] = [some async for some in reply]
        assert events[-1] == Failed(lost)
        await asyncio.to_thread(save_copies, thread)
        before.close()
    after = tiers()
    found = after.match([*more.prompt, 1], "")
    assert found is not None
    assert found.length == len(more.prompt)
    after.close()
    await thread.stop()
