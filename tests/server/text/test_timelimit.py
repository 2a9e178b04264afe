"""Code that never ends by itself is ended, and no other code with it."""

from __future__ import annotations

import threading
from contextlib import suppress
from functools import partial

import pytest

from server.errors import TimeLimitError
from server.text.timelimit import TimeLimit


def forever(begun: threading.Event | None = None) -> None:
    if begun is not None:
        begun.set()
    while True:
        try:
            pass
        except Exception:
            raise AssertionError("code that catches exceptions goes on") from None


def a_while(n: int) -> None:
    for _ in range(n):
        pass


def test_a_call_ends_after_its_time():
    with pytest.raises(TimeLimitError, match=r"0\.01 s"):
        TimeLimit(0.01).run(forever)


def test_swallowed_end_is_raised_again():
    """pytest fails a test with an unraisable exception that is reported."""
    limit, begun = TimeLimit(1000), threading.Event()
    ended: list[str] = []

    class Endless:
        def __del__(self) -> None:
            try:
                forever(begun)
            finally:
                ended.append("finalizer")

    def work() -> None:
        Endless()
        forever()

    def run() -> None:
        try:
            limit.run(work)
        except TimeLimitError:
            ended.append("call")

    thread = threading.Thread(target=run)
    thread.start()
    assert begun.wait(30)
    limit.stop()
    thread.join(30)
    assert ended == ["finalizer", "call"]


def test_call_in_thread_is_ended():
    limit, begun = TimeLimit(1000), threading.Event()
    raised: list[BaseException] = []

    def work() -> None:
        try:
            limit.run(partial(forever, begun))
        except TimeLimitError as error:
            raised.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    assert begun.wait(30)
    limit.stop()
    thread.join(30)
    assert len(raised) == 1
    with pytest.raises(TimeLimitError):  # later ones do not begin
        limit.run(lambda: pytest.fail("it began"))


def test_timely_call_is_left_alone():
    limit = TimeLimit(1000)
    assert limit.run(lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        limit.run(lambda: 1 // 0)
    limit.stop()
    a_while(100_000)  # nothing is raised here


def test_ended_calls_raise_once():
    for _ in range(1000):
        with suppress(TimeLimitError):
            TimeLimit(0.0005).run(partial(a_while, 10_000))
        a_while(2_000)
    a_while(1_000_000)


def watchers() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "duo-limit"}


def test_one_thread_watches_all_calls():
    limit, before = TimeLimit(1000), watchers()
    for n in range(50):
        assert limit.run(lambda n=n: n) == n
    assert len(watchers() - before) == 1


def test_call_ends_without_watching_thread():
    limit, before = TimeLimit(0.1), watchers()
    with suppress(TimeLimitError):  # raised if the machine stands still
        limit.run(watchers)
    for thread in watchers() - before:
        thread.join(30)
        assert not thread.is_alive()
    with pytest.raises(TimeLimitError):
        limit.run(forever)
