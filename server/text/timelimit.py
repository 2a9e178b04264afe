"""End foreign Python code that takes too long."""

from __future__ import annotations

import ctypes
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from server.errors import TimeLimitError

T = TypeVar("T")

AGAIN_S = 0.1
"""Seconds between two attempts to end a block; leaving a block takes far less."""
POLLS = 10
"""Checks per time limit, so a call ends at most a tenth of its limit late.

With twice as many, rendering templates wakes a thread twice a second instead of once.
"""


class _Ended(BaseException):
    """Raised in a block to end it. It is a BaseException, so that foreign code does not catch it."""


def _report_unraisable(hook: Callable[[Any], object], unraisable: Any) -> None:
    """Call `hook` for an exception that a finalizer swallowed, but not for _Ended, which is raised again."""
    if unraisable.exc_type is not _Ended:
        hook(unraisable)


def _silence_swallowed_ends() -> None:
    hook: Any = sys.unraisablehook
    if getattr(hook, "func", None) is not _report_unraisable:
        sys.unraisablehook = partial(_report_unraisable, hook)


class _Block:
    """A call with a time limit, in one thread."""

    def __init__(self, due_at: float) -> None:
        self.due_at = due_at  # time.monotonic() at which the call must end
        self._thread = ctypes.c_ulong(threading.get_ident())
        self._lock = threading.Lock()
        self._left = False
        self._ended = False

    def end(self, *, again: bool = False) -> None:
        """Raise _Ended in the thread, again and again until the block is left.

        A finalizer may swallow one _Ended. again: True for a repetition, which a timer calls after AGAIN_S
        seconds.
        """
        with self._lock:
            if not self._left and (again or not self._ended):
                self._ended = True
                _silence_swallowed_ends()
                ctypes.pythonapi.PyThreadState_SetAsyncExc(self._thread, ctypes.py_object(_Ended))
                timer = threading.Timer(AGAIN_S, self.end, kwargs={"again": True})
                timer.daemon = True
                timer.start()

    def leave(self) -> None:
        """Leave the block. A pending _Ended is raised here, and none is raised later."""
        with self._lock:
            self._left = True
        if self._ended:
            for _ in range(1000):  # the interpreter raises a pending exception at a jump back
                pass


class TimeLimit:
    """Limits calls in any thread to a number of seconds each.

    It cannot interrupt a call into C. The called code should hold no lock that other threads need.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._blocks: set[_Block] = set()
        self._stopped = False
        self._watched = False  # True while a thread checks the blocks

    def run(self, work: Callable[[], T]) -> T:
        """Call `work` and return its result. Raises TimeLimitError after the time limit, or after stop()."""
        block = _Block(time.monotonic() + self._seconds)
        try:
            self._blocks.add(block)
            if self._stopped:
                raise _Ended
            if not self._watched:
                self._watched = True
                threading.Thread(target=self._watch_blocks, name="duo-limit", daemon=True).start()
            try:
                return work()
            finally:
                block.leave()
        except _Ended:
            # again: _Ended may have interrupted the first leave(); the next _Ended comes AGAIN_S later
            block.leave()
            raise TimeLimitError(self._seconds) from None
        finally:
            self._blocks.discard(block)

    def _watch_blocks(self) -> None:
        """End calls whose time is over, until no call runs.

        One thread serves all calls, because starting one takes as long as many calls do.
        """
        while self._watched or self._blocks:  # a new call may have relied on _watched
            self._watched = True
            time.sleep(self._seconds / POLLS)
            now = time.monotonic()
            for block in list(self._blocks):
                if block.due_at <= now:
                    block.end()
            self._watched = bool(self._blocks)

    def stop(self) -> None:
        """End all running calls, and make later ones fail."""
        self._stopped = True
        for block in list(self._blocks):
            block.end()
