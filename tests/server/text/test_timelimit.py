"""Code that never ends by itself is ended, and no other code with it."""

from __future__ import annotations

import threading

import pytest

from server.errors import TimeLimitError
from server.text.timelimit import TimeLimit


def forever(begun: threading.Event) -> None:
    begun.set()
    while True:
        try:
            pass
        except Exception:
            raise AssertionError("code that catches exceptions goes on") from None


def test_a_block_ends_after_its_time():
    limit = TimeLimit(0.01)
    with pytest.raises(TimeLimitError, match=r"0\.01 s"), limit():
        forever(threading.Event())


def test_a_block_in_another_thread_ends_when_it_is_told_to():
    limit, begun = TimeLimit(1000), threading.Event()
    raised: list[BaseException] = []

    def work() -> None:
        try:
            with limit():
                forever(begun)
        except TimeLimitError as error:
            raised.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    assert begun.wait(30)
    limit.stop()
    thread.join(30)
    assert len(raised) == 1
    with pytest.raises(TimeLimitError), limit():  # later blocks end at once
        forever(begun)


def test_a_block_that_ends_in_time_or_fails_is_left_alone():
    limit = TimeLimit(1000)
    with limit():
        pass
    with pytest.raises(KeyError), limit():
        raise KeyError
    limit.stop()
    for _ in range(100_000):  # nothing is raised here
        pass


def test_of_many_blocks_that_end_when_their_time_does_none_raises_later():
    for _ in range(300):
        limit = TimeLimit(0.0005)
        try:
            with limit():
                for _ in range(5_000):
                    pass
        except TimeLimitError:
            pass
        for _ in range(2_000):
            pass
