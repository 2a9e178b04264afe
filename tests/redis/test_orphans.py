"""Replies whose lead is gone, on a real server: one lead takes each up, and the old writer writes no more."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest
import redis
from members import POOL
from test_replies import ANNA, BERT, NAMES, found_log, stored, until

from server.errors import LostReplyError, StoreError
from server.replies import log_writing, orphans, redis_store
from server.replies.redis_names import CANCEL
from server.replies.redis_store import LeadGroup, RedisStore
from server.replies.store import Orphan
from tests.server.replies.reading import event, events, read

pytestmark = pytest.mark.redis

RECIPE = {"body": {"input": "hello"}}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let leases end within the test, and outages be over at once."""
    monkeypatch.setattr(log_writing, "LEASE_MS", 100)
    monkeypatch.setattr(log_writing, "RENEWED_S", 0.02)
    monkeypatch.setattr(redis_store, "LEASES_RENEWED_S", 0.0)


@asynccontextmanager
async def lead(url: str, name: str, group: str = "toy") -> AsyncGenerator[RedisStore]:
    store = RedisStore(url, POOL, group=LeadGroup(group, name))
    try:
        yield store
    finally:
        await store.close()


@contextmanager
def frozen(store: RedisStore) -> Generator[None]:
    """Let a lead do nothing at Redis in this block, as if it were stopped."""
    stands, gate = threading.Event(), threading.Event()

    def stand(_: object) -> None:
        stands.set()
        gate.wait()

    store._link.ask(stand, talks=False)  # pyright: ignore[reportPrivateUsage]
    stands.wait()
    try:
        yield
    finally:
        gate.set()


async def taken_by(*stores: RedisStore, most: int = 9) -> list[list[Orphan]]:
    """Return what each store takes up, once one has taken something up."""
    taken: list[list[Orphan]] = [[] for _ in stores]

    async def is_taken() -> bool:
        found = await asyncio.gather(*(store.take_up(most) for store in stores))
        for all_of_it, new in zip(taken, found, strict=True):
            all_of_it += new
        return any(taken)

    await until(is_taken)
    return taken


async def test_orphan_is_taken_up_once(url: str):
    async with lead(url, "a") as first, lead(url, "b") as second, lead(url, "c") as third:
        log = first.begin_log(ANNA, "resp_1", RECIPE)
        log.append(events(0, 1))
        log.append(event(2), b'{"n":1}')
        log.append(event(3), b'{"n":2}')
        await first.flush()
        with frozen(first):
            taken = await taken_by(second, third)
            [orphan] = [one for found in taken for one in found]
            assert (orphan.owner, orphan.id, orphan.recipe) == (ANNA, "resp_1", RECIPE)
            assert orphan.states == [{"n": 1}, {"n": 2}]
            orphan.log.append(event(4))
            reader = asyncio.ensure_future(read(await found_log(third if taken[0] else second)))
            orphan.log.end()
            assert await reader == events(0, 1, 2, 3, 4)
            assert await read(await found_log(second), 1) == events(2, 3, 4)
        assert await taken_by_nobody(second, third)


async def taken_by_nobody(*stores: RedisStore) -> bool:
    """Return True if nothing is taken up in some polls, which are more than an orphan needs."""
    for _ in range(4):
        for store in stores:
            if await store.take_up(9):
                return False
    return True


@pytest.mark.parametrize("leaves", [True, False])
async def test_second_of_two_leads_takes_nothing(url: str, leaves: bool, monkeypatch: pytest.MonkeyPatch):
    """It has seen the orphan before the other lead takes it up, and tries after that."""
    loop, before = asyncio.get_running_loop(), list[Orphan]()
    async with lead(url, "a") as first, lead(url, "b") as second, lead(url, "c") as third:
        first.begin_log(ANNA, "resp_1", RECIPE).append(event(0))
        await first.flush()
        if leaves:
            first.leave(ANNA.salt, "resp_1")
            await first.flush()
        take = third._orphans._take  # pyright: ignore[reportPrivateUsage]

        def late(*about: Any) -> Any:
            taking = asyncio.run_coroutine_threadsafe(second.take_up(9), loop)
            before.extend(taking.result())
            return take(*about)

        monkeypatch.setattr(third._orphans, "_take", late)  # pyright: ignore[reportPrivateUsage]
        with frozen(first):
            found = list[Orphan]()

            async def is_tried() -> bool:
                await second.take_up(0)
                found.extend(await third.take_up(9))
                return bool(before or found)

            await until(is_tried)
            assert (len(before), found) == (1, [])
            before[0].log.end()


async def test_two_silent_writers_are_no_orphan(url: str, client: redis.Redis):
    """One poll without a lease is not enough, even if an earlier writer was silent at the poll before."""
    writer = NAMES.writer(ANNA.salt, "resp_1")
    async with lead(url, "a") as first, lead(url, "b") as second, lead(url, "c") as third:
        first.begin_log(ANNA, "resp_1", RECIPE).append(event(0))
        await first.flush()
        with frozen(first):
            client.delete(writer)
            assert not await third.take_up(9)
            [[orphan]] = await taken_by(second)
            with frozen(second):
                client.delete(writer)
                assert not await third.take_up(9)
                [again] = await third.take_up(9)
                again.log.end()

        async def is_fenced() -> bool:
            return orphan.log.taken

        await until(is_fenced)


async def test_fenced_writer_leaves_nothing(url: str, client: redis.Redis):
    """A lead that drains gives no log to others that another lead has taken up."""
    async with lead(url, "a") as first, lead(url, "b") as second, lead(url, "c") as third:
        first.begin_log(ANNA, "resp_1", RECIPE).append(event(0))
        await first.flush()
        with frozen(first):
            [[orphan]] = await taken_by(second)
            first.leave(ANNA.salt, "resp_1")
        await first.flush()
        assert client.get(NAMES.writer(ANNA.salt, "resp_1")) in (b"1", None)  # None: its lease is over
        assert not await third.take_up(9)
        orphan.log.end()


async def test_next_writer_of_left_log_is_cancelled(url: str):
    cancelled = list[str]()
    async with lead(url, "a") as first, lead(url, "b") as second:
        second.on_cancel = lambda salt, id: cancelled.append(id)
        first.begin_log(ANNA, "resp_1", RECIPE).append(event(0))
        await first.flush()
        first.leave(ANNA.salt, "resp_1")
        await first.flush()
        await first.cancel(ANNA.salt, "resp_1")
        [orphan] = await second.take_up(9)

        async def is_cancelled() -> bool:
            await first.cancel(ANNA.salt, "resp_1")
            return bool(cancelled)

        await until(is_cancelled)
        orphan.log.end()


async def test_cancellation_prolongs_no_lease(url: str, client: redis.Redis):
    """Else a reply whose writer is dead would be taken up late."""
    writer = NAMES.writer(ANNA.salt, "resp_1")
    async with lead(url, "a") as first, lead(url, "b") as second:
        assert not await second.cancel(ANNA.salt, "resp_1")
        first.begin_log(ANNA, "resp_1", RECIPE).append(event(0))
        await first.flush()
        with frozen(first):
            client.set(writer, b"0", px=60_000)
            assert await second.cancel(ANNA.salt, "resp_1")
            assert client.get(writer) == CANCEL
            client.pexpire(writer, 60)

            async def is_over() -> bool:
                return not await second.cancel(ANNA.salt, "resp_1")

            await until(is_over)


async def test_late_writer_is_fenced(url: str):
    """Its readers go on with what the new writer writes."""
    gone: list[str] = []
    async with lead(url, "a") as first, lead(url, "b") as second:
        first.on_taken = lambda salt, id: gone.append(id)
        log = first.begin_log(ANNA, "resp_1", RECIPE)
        first.put(ANNA, stored(status="in_progress"))
        log.append(event(0))
        await first.flush()
        reader = asyncio.ensure_future(read(await found_log(first)))
        with frozen(first):
            log.append(events(1, 2))
            [[orphan]] = await taken_by(second)
            orphan.log.append(event(1))
            await second.flush()
            first.put(ANNA, stored(status="of the late writer"))
        log.append(event(3))
        second.put(ANNA, stored(status="completed"))
        orphan.log.append(events(2, 3, 4))
        orphan.log.end()
        assert await reader == events(0, 1, 2, 3, 4)

        async def is_told() -> bool:
            return bool(gone)

        await until(is_told)
        assert log.taken
        first.put(ANNA, stored(status="of the late writer"))
        await first.flush()
        kept = await second.get(ANNA.salt, "resp_1")
        assert kept == stored(status="completed")
        assert await read(await found_log(first)) == events(0, 1, 2, 3, 4)


async def test_living_writer_keeps_its_log(url: str):
    async with lead(url, "a") as first, lead(url, "b") as second, lead(url, "c", "other") as third:
        log = first.begin_log(ANNA, "resp_1", RECIPE)
        log.append(event(0))
        await first.flush()
        assert await taken_by_nobody(first, second)
        first.leave(ANNA.salt, "resp_1")
        await first.flush()
        assert await taken_by_nobody(third)
        [[orphan]] = await taken_by(second)
        assert await read(log) == event(0)
        orphan.log.end()


async def test_left_log_needs_no_second_poll(url: str):
    async with lead(url, "a") as first, lead(url, "b") as second:
        logs = [first.begin_log(ANNA, f"resp_{i}", RECIPE) for i in range(3)]
        for log in logs:
            log.append(event(0))
        await first.flush()
        for i in range(3):
            first.leave(ANNA.salt, f"resp_{i}")
        await first.flush()
        taken = [*await second.take_up(2), *await second.take_up(2)]
        assert sorted(orphan.id for orphan in taken) == ["resp_0", "resp_1", "resp_2"]
        for orphan in taken:
            orphan.log.end()


async def test_log_left_at_its_beginning_is_taken(url: str, monkeypatch: pytest.MonkeyPatch):
    """Another lead polls between the log's first entry and the lease that says that it is left."""
    loop, claim = asyncio.get_running_loop(), log_writing.LogWriting._claim  # pyright: ignore[reportPrivateUsage]
    async with lead(url, "a") as first, lead(url, "b") as second:
        waiting = [asyncio.Event()]

        def claim_late(writing: log_writing.LogWriting, *rest: Any) -> bool:
            if writing is first._writing and waiting:  # pyright: ignore[reportPrivateUsage]
                asyncio.run_coroutine_threadsafe(second.take_up(9), loop).result()
                loop.call_soon_threadsafe(waiting.pop().set)
            return claim(writing, *rest)

        monkeypatch.setattr(log_writing.LogWriting, "_claim", claim_late)
        polled = waiting[0].wait()
        with frozen(first):
            first.begin_log(ANNA, "resp_1", RECIPE).append(event(0))
            first.leave(ANNA.salt, "resp_1")
        await polled
        [[_]] = await taken_by(second)


async def test_log_left_in_an_outage_is_taken(url: str, monkeypatch: pytest.MonkeyPatch):
    async with lead(url, "a") as first, lead(url, "b") as second:
        first.begin_log(ANNA, "resp_1", RECIPE).append(event(0))
        await first.flush()
        attempt, failures = first._link.attempt, [StoreError.unreachable()]  # pyright: ignore[reportPrivateUsage]

        def fail_once(work: Any) -> Any:
            if failures:
                raise failures.pop()
            return attempt(work)

        monkeypatch.setattr(first._writing, "attempt", fail_once)  # pyright: ignore[reportPrivateUsage]
        with frozen(first):
            first.leave(ANNA.salt, "resp_1")
        [[_]] = await taken_by(second)


async def test_log_without_recipe_is_not_taken(url: str):
    async with lead(url, "a") as first, lead(url, "b") as second:
        log = first.begin_log(ANNA, "resp_1")
        log.append(event(0))
        await first.flush()
        with frozen(first):
            assert await taken_by_nobody(second)
            assert await taken_by_nobody(second)


async def test_nobody_waits_for_ever(url: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(log_writing, "AWAITED_MS", 50)
    async with lead(url, "a") as first, lead(url, "b") as second:
        log = first.begin_log(ANNA, "resp_1", RECIPE)
        log.append(event(0))
        await first.flush()
        with frozen(first):
            reading = (await found_log(second)).events(-1)
            assert await anext(reading) == event(0)
            with pytest.raises(LostReplyError):
                await anext(reading)
            assert await taken_by_nobody(second)


async def test_deadly_reply_ends_few_leads(url: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(orphans, "MOST_TERMS", 2)
    async with lead(url, "a") as first, lead(url, "b") as second:
        first.begin_log(ANNA, "resp_1", RECIPE).append(event(0))
        await first.flush()
        first.leave(ANNA.salt, "resp_1")
        await first.flush()
        [[orphan]] = await taken_by(second)
        second.leave(ANNA.salt, "resp_1")
        await second.flush()
        assert await taken_by_nobody(first)
        with pytest.raises(LostReplyError):
            await read(await found_log(first))
        assert await read(orphan.log) == event(0)


async def test_readers_get_what_is_stored(url: str):
    """A client never knows more than the lead that goes on with its reply."""
    async with lead(url, "a") as first:
        log = first.begin_log(ANNA, "resp_1", RECIPE)
        reading = (await found_log(first)).events(-1)
        log.append(event(0))
        assert await anext(reading) == event(0)
        with frozen(first):
            log.append(event(1))
            waiting = asyncio.ensure_future(anext(reading))
            assert await first._beside.get(ANNA.salt, "resp_1") is None  # pyright: ignore[reportPrivateUsage]
            assert not waiting.done()
        assert await waiting == event(1)
        log.end()


async def test_other_key_finds_no_orphan(url: str):
    async with lead(url, "a") as first, lead(url, "b") as second:
        first.begin_log(ANNA, "resp_1", RECIPE).append(event(0))
        await first.flush()
        first.leave(ANNA.salt, "resp_1")
        await first.flush()
        [[orphan]] = await taken_by(second)
        assert await second.log(BERT.salt, "resp_1") is None
        assert not await second.is_written(BERT.salt, "resp_1")
        await second.cancel(BERT.salt, "resp_1")
        orphan.log.append(event(1))
        orphan.log.end()
        assert await read(await found_log(second)) == events(0, 1)


async def test_deleted_reply_is_not_taken(url: str):
    async with lead(url, "a") as first, lead(url, "b") as second:
        first.put(ANNA, stored())
        first.begin_log(ANNA, "resp_1", RECIPE).append(event(0))
        await first.flush()
        first.leave(ANNA.salt, "resp_1")
        await first.flush()
        assert await second.delete(ANNA, "resp_1")
        assert await taken_by_nobody(first, second)


async def test_leads_of_a_kin_know_each_other(url: str):
    async with lead(url, "a") as first, lead(url, "c", "other") as third:
        async with lead(url, "b") as second:
            for store in (first, second, third, first):
                await store.take_up(0)
            assert (first.members, third.members) == (("a", "b"), ("c",))
        await first.take_up(0)
        assert first.members == ("a",)
