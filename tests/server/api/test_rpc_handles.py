"""Handles: how many, for how long, and what becomes of what they hold."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from server.api.rpc.handles import Handles
from server.api.rpc.protocol import UnknownHandleError
from server.errors import BackendError, BusyError


class Work:
    """A Held that records whether it was cancelled."""

    def __init__(self, *, finished: bool = False, error: Exception | None = None) -> None:
        self.n_cancelled = 0
        self.finished = finished
        self.error = error

    def updates(self) -> tuple[list[dict[str, Any]], bool]:
        if self.error is not None:
            raise self.error
        return [{"content": "x"}], self.finished

    def cancel(self) -> None:
        self.n_cancelled += 1


async def until_cancelled(work: Work) -> None:
    async with asyncio.timeout(10):
        while not work.n_cancelled:
            await asyncio.sleep(0.002)


async def test_unpolled_handle_is_cancelled():
    asked_for, forgotten = Work(), Work()
    handles = Handles(kept_s=0.5)
    lost, kept = handles.open(lambda: forgotten), handles.open(lambda: asked_for)
    assert kept != lost
    while not forgotten.n_cancelled:
        assert handles.updates(kept) == ([{"content": "x"}], False)
        await asyncio.sleep(0.002)
    with pytest.raises(UnknownHandleError, match=r"0\.5 s"):
        handles.updates(lost)
    handles.updates(kept)
    assert (asked_for.n_cancelled, forgotten.n_cancelled, len(handles)) == (0, 1, 1)
    handles.close_all()


async def test_expired_handle_cancels_by_itself():
    work = Work()
    handles = Handles(kept_s=0.01)
    handles.open(lambda: work)
    await until_cancelled(work)
    assert len(handles) == 0


async def test_number_of_handles_is_bounded():
    handles = Handles(most=2, kept_s=0.05)
    works = [Work(), Work()]
    for work in works:
        handles.open(lambda work=work: work)

    def never() -> Work:
        raise AssertionError("it was begun")

    with pytest.raises(BusyError):
        handles.open(never)
    for work in works:
        await until_cancelled(work)
    handles.open(Work)
    assert [work.n_cancelled for work in works] == [1, 1]
    handles.close_all()


async def test_end_is_reported_once():
    handles = Handles()
    ended = handles.open(lambda: Work(finished=True))
    failed = handles.open(lambda: Work(error=BackendError("broken")))
    assert handles.updates(ended) == ([{"content": "x"}], True)
    with pytest.raises(BackendError):
        handles.updates(failed)
    for handle in (ended, failed):
        with pytest.raises(UnknownHandleError):
            handles.updates(handle)
    assert len(handles) == 0
    handles.close_all()


async def test_failing_start_leaves_no_handle():
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
