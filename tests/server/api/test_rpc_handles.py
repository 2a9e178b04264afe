"""Handles: how many, for how long, and what becomes of what they hold."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from server.api.rpc.handles import Handles
from server.api.rpc.protocol import UnknownHandleError
from server.errors import BackendError, BusyError


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Work:
    """Implements Held."""

    def __init__(self, *, finished: bool = False, error: Exception | None = None) -> None:
        self.n_cancelled = 0
        self.finished = finished
        self.error = error

    def news(self) -> tuple[list[dict[str, Any]], bool]:
        if self.error is not None:
            raise self.error
        return [{"content": "x"}], self.finished

    def cancel(self) -> None:
        self.n_cancelled += 1


async def test_what_nobody_asks_for_is_cancelled():
    clock, asked_for, forgotten = Clock(), Work(), Work()
    handles = Handles(kept_s=60, clock=clock)
    kept, lost = handles.open(lambda: asked_for), handles.open(lambda: forgotten)
    assert kept != lost
    clock.now += 59
    assert handles.news(kept) == ([{"content": "x"}], False)
    clock.now += 1
    with pytest.raises(UnknownHandleError, match="60 s"):
        handles.news(lost)
    assert (asked_for.n_cancelled, forgotten.n_cancelled) == (0, 1)
    handles.news(kept)
    assert len(handles) == 1
    handles.close_all()


async def test_it_is_cancelled_even_if_nobody_asks_for_anything():
    work = Work()
    handles = Handles(kept_s=0.01)
    handles.open(lambda: work)
    async with asyncio.timeout(10):
        while not work.n_cancelled:
            await asyncio.sleep(0.002)
    assert len(handles) == 0


async def test_there_are_only_so_many():
    clock = Clock()
    handles = Handles(most=2, kept_s=60, clock=clock)
    works = [Work(), Work()]
    for work in works:
        handles.open(lambda work=work: work)

    def never() -> Work:
        raise AssertionError("it was begun")

    with pytest.raises(BusyError):
        handles.open(never)
    clock.now += 60
    handles.open(Work)  # those before have expired
    assert [work.n_cancelled for work in works] == [1, 1]
    handles.close_all()


async def test_the_end_is_told_once_and_so_is_an_error():
    handles = Handles()
    ended = handles.open(lambda: Work(finished=True))
    failed = handles.open(lambda: Work(error=BackendError("broken")))
    assert handles.news(ended) == ([{"content": "x"}], True)
    with pytest.raises(BackendError):
        handles.news(failed)
    for handle in (ended, failed):
        with pytest.raises(UnknownHandleError):
            handles.news(handle)
    assert len(handles) == 0
    handles.close_all()


async def test_what_fails_to_begin_has_no_handle():
    handles = Handles()

    def fails() -> Work:
        raise BusyError("full")

    with pytest.raises(BusyError, match="full"):
        handles.open(fails)
    assert len(handles) == 0


async def test_closing_cancels():
    first, second = Work(), Work()
    handles = Handles()
    handles.close(handles.open(lambda: first))
    handles.open(lambda: second)
    handles.close_all()
    assert (first.n_cancelled, second.n_cancelled, len(handles)) == (1, 1, 0)
