"""A closed terminal ends a process as SIGTERM does, unless it was told to stay."""

from __future__ import annotations

import signal
from collections.abc import Generator

import pytest

from server.hangup import take_hangups_for_ends


@pytest.fixture
def ends() -> Generator[list[int]]:
    """The signals that a handler of SIGTERM has had."""
    had: list[int] = []
    before = [(number, signal.getsignal(number)) for number in (signal.SIGHUP, signal.SIGTERM)]
    signal.signal(signal.SIGHUP, lambda number, frame: None)  # unlike the default, a failure that can be told
    yield had
    for number, handler in before:
        signal.signal(number, handler)


def test_a_hangup_is_for_who_handles_the_end_at_the_time(ends: list[int]):
    take_hangups_for_ends()
    signal.signal(signal.SIGTERM, lambda number, frame: ends.append(number))
    signal.raise_signal(signal.SIGHUP)
    assert ends == [signal.SIGTERM]


def test_under_nohup_a_hangup_stays_ignored(ends: list[int]):
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    take_hangups_for_ends()
    signal.signal(signal.SIGTERM, lambda number, frame: ends.append(number))
    signal.raise_signal(signal.SIGHUP)
    assert ends == []
