"""The time of day in a test's hand."""

from __future__ import annotations

import time


class Clock:
    """A clock that tests move ahead."""

    def __init__(self) -> None:
        self.ahead = 0

    def __call__(self) -> int:
        return time.time_ns() + self.ahead
