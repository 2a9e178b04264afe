"""The log of a reply: no reader misses an event or gets one twice, wherever it begins."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.errors import OtherEventsError
from server.replies.reply_log import JOINED_CHUNKS, UNSTORED, ReplyLog, bytes_from
from tests.server.replies.reading import event, events, read


async def test_reader_gets_each_event_once():
    log = ReplyLog()
    log.append(events(0, 1))
    early = asyncio.ensure_future(read(log))
    await asyncio.sleep(0)
    log.append(event(2))
    await asyncio.sleep(0)
    log.append(events(3, 4))
    late = asyncio.ensure_future(read(log, 3))
    await asyncio.sleep(0)
    log.end()
    assert await early == events(0, 1, 2, 3, 4)
    assert await late == event(4)
    assert (log.n_events, log.n_bytes) == (5, len(events(0, 1, 2, 3, 4)))


async def test_slow_reader_misses_nothing():
    """More events arrive while a chunk is on its way to the client."""
    log = ReplyLog()
    log.append(events(0, 1))
    reader = log.events(-1)
    assert await anext(reader) == events(0, 1)
    for number in range(2, 2 * JOINED_CHUNKS):
        log.append(event(number))
    log.end()
    assert b"".join([chunk async for chunk in reader]) == events(*range(2, 2 * JOINED_CHUNKS))


async def test_cancelled_reader_leaves_the_log():
    log = ReplyLog()
    reading = asyncio.ensure_future(read(log))
    await asyncio.sleep(0)
    reading.cancel()
    await asyncio.wait([reading])
    log.append(event(0))
    log.end()
    assert await read(log) == event(0)


@given(st.lists(st.integers(1, 4), max_size=8), st.integers(-1, 30), st.integers(0, 800))
def test_any_place_begins_there(sizes: list[int], after: int, start: int):
    async def check() -> None:
        log, n = ReplyLog(), 0
        for size in sizes:
            log.append(events(*range(n, n + size)))
            n += size
        log.end()
        assert await read(log, after) == events(*range(after + 1, n))
        tail = b"".join([chunk async for chunk in bytes_from(log, start)])
        assert tail == events(*range(n))[start:]

    asyncio.run(check())


async def test_lost_events_have_numbers_of_their_own():
    """Another process may go on with the reply after the event 1, and number its events from 2 on."""
    log = ReplyLog(guarded=True)
    log.append(events(0, 1))
    log.append(events(2, 3))
    log.show_chunks(1)
    early = asyncio.ensure_future(read(log))
    await asyncio.sleep(0)
    log.lose()
    log.append(event(4))
    log.end()
    apart = [UNSTORED + number for number in (2, 3, 4)]
    assert await early == events(0, 1, *apart)
    assert log.n_bytes == len(await early)
    assert await read(log, 0) == events(1, *apart)
    assert await read(log, 1) == events(*apart)
    assert await read(log, apart[0]) == events(*apart[1:])
    assert await read(log, apart[2]) == b""
    for foreign in (2, 3, UNSTORED + 1):
        with pytest.raises(OtherEventsError):
            await read(log, foreign)


async def test_log_refuses_events_of_lost_ones():
    log = ReplyLog(guarded=True)
    log.append(events(0, 1))
    log.end()
    with pytest.raises(OtherEventsError):
        await read(log, UNSTORED + 1)


async def test_unshared_lost_log_keeps_its_numbers():
    log = ReplyLog()
    log.append(events(0, 1))
    log.lose()
    log.append(event(2))
    log.end()
    assert await read(log, 1) == event(2)
