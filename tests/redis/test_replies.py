"""The store of replies on a real server: over restarts, between leads, in outages, within its limits."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
import redis
from members import POOL, Server

from server.errors import LostReplyError, StoreError
from server.replies import log_writing, redis_documents, redis_link, redis_store
from server.replies.kept import KeptBounds, StoredResponse, with_items
from server.replies.redis_names import ReplyNames
from server.replies.redis_store import RedisStore
from server.replies.reply_log import LogReader
from server.replies.store import Owner
from server.speculation.wire import redis_client
from tests.server.replies.reading import event, events, read

pytestmark = pytest.mark.redis

ANNA, BERT = Owner("salt of anna", "anna"), Owner("salt of bert", "bert")
NAMES = ReplyNames(POOL)


def stored(id: str = "resp_1", **more: Any) -> StoredResponse:
    return StoredResponse({"id": id, **more}, [{"role": "user", "content": "hello"}], [])


@asynccontextmanager
async def opened(url: str, bounds: KeptBounds | None = None) -> AsyncGenerator[RedisStore]:
    """Yield a store as one lead has it."""
    store = RedisStore(url, POOL, bounds)
    try:
        yield store
    finally:
        await store.close()


async def found_log(store: RedisStore, id: str = "resp_1", salt: str = ANNA.salt) -> LogReader:
    log = await store.log(salt, id)
    assert log is not None
    return log


async def until(condition: Any) -> None:
    async with asyncio.timeout(20):
        while not await condition():
            await asyncio.sleep(0.005)


async def test_log_is_found_before_its_first_event(url: str):
    async with opened(url) as first, opened(url) as second:
        log = first.begin_log(ANNA, "resp_1")
        await first.flush()
        reader = asyncio.ensure_future(read(await found_log(second)))
        log.append(event(0))
        log.end()
        assert await reader == event(0)


async def test_responses_outlive_their_lead(url: str):
    kept = stored(output=[{"id": "msg_1", "text": "a"}])
    async with opened(url) as store:
        store.put(ANNA, kept)
        assert await store.get(ANNA.salt, "resp_1") == kept
    async with opened(url) as store:
        assert await store.get(ANNA.salt, "resp_1") == kept
        assert await store.item(ANNA.salt, "msg_1") == {"id": "msg_1", "text": "a"}
        for other in (BERT.salt, ""):
            assert await store.get(other, "resp_1") is None
            assert await store.item(other, "msg_1") is None
        assert not await store.delete(BERT, "resp_1")
        assert await store.delete(ANNA, "resp_1")
        assert not await store.delete(ANNA, "resp_1")
        assert await store.item(ANNA.salt, "msg_1") is None


async def test_names_cannot_be_forged(url: str):
    async with opened(url) as store:
        store.put(ANNA, stored())
        inside = NAMES.response(ANNA.salt, "resp_1").rpartition(":reply:")[2]
        for id in (inside, f"../{inside}", "resp_1:log", "resp_*", "", "resp_1\n"):
            assert await store.get(ANNA.salt, id) is None
            assert await store.log(ANNA.salt, id) is None
            assert not await store.delete(ANNA, id)


async def test_another_lead_reads_a_running_log(url: str):
    async with opened(url) as first, opened(url) as second:
        log = first.begin_log(ANNA, "resp_1")
        log.append(events(0, 1))
        await first.flush()
        assert await second.is_written(ANNA.salt, "resp_1")
        assert await second.log(BERT.salt, "resp_1") is None
        whole = asyncio.ensure_future(read(await found_log(second)))
        part = asyncio.ensure_future(read(await found_log(second), 2))
        for number in range(2, 600):
            log.append(event(number))
            if number % 100 == 0:
                await first.flush()
        log.end()
        assert await whole == events(*range(600))
        assert await part == events(*range(3, 600))
        await first.flush()  # readers see the end before the lease is removed
        assert not await second.is_written(ANNA.salt, "resp_1")
        assert await read(await found_log(first), 597) == events(598, 599)


async def test_cancel_reaches_the_writing_lead(url: str):
    asked: list[tuple[str, str]] = []
    async with opened(url) as first, opened(url) as second:
        first.on_cancel = lambda salt, id: asked.append((salt, id))
        log = first.begin_log(ANNA, "resp_1")
        await first.flush()
        await second.cancel(BERT.salt, "resp_1")
        await second.cancel(ANNA.salt, "resp_1")

        async def was_asked() -> bool:
            return bool(asked)

        await until(was_asked)
        log.end()
        assert set(asked) == {(ANNA.salt, "resp_1")}


async def test_gone_writer_is_told(url: str, client: redis.Redis, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(log_writing, "AWAITED_MS", 100)
    async with opened(url) as first, opened(url) as second:
        log = first.begin_log(ANNA, "resp_1")
        log.append(event(0))
        await first.flush()
        first._link.close()  # pyright: ignore[reportPrivateUsage]  # as a lead that is killed

        async def is_gone() -> bool:
            return not await second.is_written(ANNA.salt, "resp_1")

        await until(is_gone)
        reading = (await found_log(second)).events(-1)
        assert await anext(reading) == event(0)
        with pytest.raises(LostReplyError):
            await anext(reading)


async def test_limits_hold_for_each_key(url: str, client: redis.Redis):
    bounds = KeptBounds(most=5, most_bytes=4000)
    async with opened(url, bounds) as store:
        store.put(BERT, stored("resp_b"))
        for i in range(30):
            store.put(Owner(f"salt {i}", "anna"), stored(f"resp_{i}", output=[{"id": f"msg_{i}"}]))
        found = [i for i in range(30) if await store.get(f"salt {i}", f"resp_{i}")]
        assert found == list(range(25, 30))
        holders = cast("list[bytes]", list(client.scan_iter("*:in")))  # pyright: ignore[reportUnknownArgumentType]
        assert len(holders) == 5, "items of what is dropped take no room"
        store.put(ANNA, stored("resp_large", text="x" * 3900))
        assert [i for i in range(30) if await store.get(f"salt {i}", f"resp_{i}")] == []
        assert await store.get(ANNA.salt, "resp_large")
        store.put(ANNA, stored("resp_large", text="x" * 4100))
        assert await store.get(ANNA.salt, "resp_large") is None
        assert await store.get(BERT.salt, "resp_b")
        log = store.begin_log(ANNA, "resp_1")
        log.append(event(0) * 120)
        store.put(ANNA, stored("resp_1"))
        log.end()
        assert await store.get(ANNA.salt, "resp_1") is None


async def test_huge_document_stays_in_its_process(url: str, monkeypatch: pytest.MonkeyPatch):
    """Redis would end the connection of a command that is too long, and with it the logs of all."""
    monkeypatch.setattr(redis_documents, "MOST_DOCUMENT", 1000)
    async with opened(url) as store, opened(url) as other:
        store.put(ANNA, huge := stored("resp_huge", text="x" * 1000))
        assert await store.get(ANNA.salt, "resp_huge") == huge
        assert await other.get(ANNA.salt, "resp_huge") is None
        store.put(ANNA, stored("conv_1"))
        await store.flush()
        with pytest.raises(StoreError):
            await store.change(
                ANNA, "conv_1", lambda one: with_items(one, [{"id": "msg_1", "text": "x" * 1000}])
            )


async def test_refusals_are_no_outage(url: str):
    link = redis_link.RedisLink(url, lambda _: False)

    def refused(client: redis.Redis) -> object:
        return cast(object, client.execute_command("SET", "duo:refused"))  # which lacks a value

    with pytest.raises(StoreError):
        await asyncio.wait_for(asyncio.wrap_future(link.ask(refused)), redis_link.PATIENCE_S / 2)
    assert await asyncio.wrap_future(link.ask(lambda client: client.exists("duo:refused"))) == 0
    link.close()


async def test_silent_work_ends_no_outage(
    server: Server, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(redis_link, "PATIENCE_S", 0.0)
    link = redis_link.RedisLink(server.url, lambda _: False)
    server.kill()
    with pytest.raises(StoreError):
        await asyncio.wrap_future(link.ask(lambda client: client.exists("duo:x")))
    assert await asyncio.wrap_future(link.ask(lambda _: 1, talks=False)) == 1
    assert not [one for one in caplog.messages if "is back:" in one]
    link.close()


async def test_overdue_keys_go_by_themselves(url: str, client: redis.Redis):
    async with opened(url, KeptBounds(kept_s=0.2)) as store:
        log = store.begin_log(ANNA, "resp_1")
        log.append(event(0))
        store.put(ANNA, stored(output=[{"id": "msg_1"}]))
        log.end()
        await store.flush()

        async def are_gone() -> bool:
            return not cast(list[bytes], client.keys("*"))

        await until(are_gone)


async def test_changes_of_two_leads_both_count(url: str):
    n_each = redis_documents.CHANGES - 1  # each may spoil one try of the other lead
    async with opened(url) as first, opened(url) as second:
        first.put(ANNA, stored("conv_1"))
        await first.flush()

        async def add(store: RedisStore, n: int) -> None:
            for i in range(n_each):
                new = {"id": f"msg_{n}x{i}"}
                assert await store.change(ANNA, "conv_1", lambda one, new=new: with_items(one, [new]))

        await asyncio.gather(add(first, 1), add(second, 2))
        kept = await first.get(ANNA.salt, "conv_1")
        assert kept is not None
        assert len(kept.items_by_id) == 2 * n_each
        assert await second.change(BERT, "conv_1", lambda one: one) is None


async def test_outage_leaves_readers_and_says_so(server: Server, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(redis_link, "PATIENCE_S", 0.3)
    monkeypatch.setattr(redis_link, "PROBE_S", 0.1)
    async with opened(server.url) as store:
        log = store.begin_log(ANNA, "resp_1")
        log.append(event(0))
        await store.flush()
        reader = asyncio.ensure_future(read(log))
        server.kill()
        log.append(event(1))

        async def is_lost() -> bool:
            return log.lost

        await until(is_lost)
        log.append(event(2))
        store.put(ANNA, stored(status="completed"))
        log.end()
        assert await reader == events(0, 1, 2)
        with pytest.raises(StoreError):
            await store.get(ANNA.salt, "resp_2")

        async def is_here() -> bool:
            return await store.get(ANNA.salt, "resp_1") == stored(status="completed")

        await until(is_here)  # kept in this process
        assert await read(await found_log(store), 0) == events(1, 2)
        server.start()

        async def is_back() -> bool:
            try:
                return await store.get(ANNA.salt, "resp_2") is None
            except StoreError:
                return False

        await until(is_back)
        store.put(ANNA, stored("resp_3"))
        await store.flush()
        async with opened(server.url) as other:
            assert await other.get(ANNA.salt, "resp_3") == stored("resp_3")


async def test_emptied_server_loses_the_log(url: str, client: redis.Redis):
    async with opened(url) as store:
        log = store.begin_log(ANNA, "resp_1")
        log.append(event(0))
        await store.flush()
        client.flushall()
        log.append(event(1))
        await store.flush()

        async def is_lost() -> bool:
            return log.lost

        await until(is_lost)
        store.put(ANNA, stored())
        log.end()
        await store.flush()
        assert await read(await found_log(store)) == events(0, 1)


async def test_hanging_server_holds_nobody(server: Server, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(redis_link, "PATIENCE_S", 0.0)
    monkeypatch.setattr(redis_store, "FLUSH_TIMEOUT_S", 0.1)
    async with opened(server.url) as store:
        log = store.begin_log(ANNA, "resp_1")
        await store.flush()
        assert server.process is not None
        os.kill(server.process.pid, signal.SIGSTOP)
        try:
            began = time.monotonic()
            log.append(event(0))
            store.put(ANNA, stored())
            await store.flush()
            assert time.monotonic() - began < redis_client.IO_TIMEOUT_S  # when the server would be given up
            log.end()
            assert await read(log) == event(0)
            with pytest.raises(StoreError):
                await store.get(ANNA.salt, "resp_2")
        finally:
            os.kill(server.process.pid, signal.SIGCONT)
