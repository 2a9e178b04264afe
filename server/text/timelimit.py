"""Ends Python code of others that takes too long."""

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

AGAIN_S = 0.1  # between two attempts to end a block: far longer than leaving it takes
# Looks at a call within its time, which ends up to a tenth of that late. Half: up to a fifth; twice: while
# templates are rendered a thread wakes twice a second, not once.
LOOKS = 10


class _Ended(BaseException):
    """Raised in a block that shall end. A BaseException, so that the code does not catch it."""


def _told(hook: Callable[[Any], object], unraisable: Any) -> None:
    """A finalizer that swallows _Ended is no defect to log: it is raised again."""
    if unraisable.exc_type is not _Ended:
        hook(unraisable)


def _tell_no_swallowed_end() -> None:
    hook: Any = sys.unraisablehook
    if getattr(hook, "func", None) is not _told:
        sys.unraisablehook = partial(_told, hook)


class _Block:
    """A call in one thread. due_at: when its time is over, by time.monotonic()."""

    def __init__(self, due_at: float) -> None:
        self.due_at = due_at
        self._thread = ctypes.c_ulong(threading.get_ident())
        self._lock = threading.Lock()
        self._left = False
        self._ended = False

    def end(self, *, again: bool = False) -> None:
        """Raise _Ended in the thread every AGAIN_S until the block has been left: a finalizer may swallow
        it."""
        with self._lock:
            if not self._left and (again or not self._ended):
                self._ended = True
                _tell_no_swallowed_end()
                ctypes.pythonapi.PyThreadState_SetAsyncExc(self._thread, ctypes.py_object(_Ended))
                timer = threading.Timer(AGAIN_S, self.end, kwargs={"again": True})
                timer.daemon = True
                timer.start()

    def leave(self) -> None:
        """No _Ended is raised after this; one that is pending is raised here."""
        with self._lock:
            self._left = True
        if self._ended:
            for _ in range(1000):  # the interpreter raises at a jump back
                pass


class TimeLimit:
    """Limits calls in any thread to a number of seconds each. It cannot interrupt a call into C, and what is
    called should hold no lock that others need."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._blocks: set[_Block] = set()
        self._stopped = False
        self._watched = False  # whether a thread looks after them

    def run(self, work: Callable[[], T]) -> T:
        """The result of work. Raises TimeLimitError if it takes too long or stop() is called."""
        block = _Block(time.monotonic() + self._seconds)
        try:
            self._blocks.add(block)
            if self._stopped:
                raise _Ended
            if not self._watched:
                self._watched = True
                threading.Thread(target=self._watch, name="duo-limit", daemon=True).start()
            try:
                return work()
            finally:
                block.leave()
        except _Ended:
            block.leave()  # again, if _Ended came before it was left; the next one is AGAIN_S away
            raise TimeLimitError(self._seconds) from None
        finally:
            self._blocks.discard(block)

    def _watch(self) -> None:
        """End calls whose time is over, until there are none. One thread for all of them: to start one takes
        as long as many calls do, and waits for the interpreter."""
        while self._watched or self._blocks:  # a call that has just begun may have seen that it was watched
            self._watched = True
            time.sleep(self._seconds / LOOKS)
            now = time.monotonic()
            for block in list(self._blocks):
                if block.due_at <= now:
                    block.end()
            self._watched = bool(self._blocks)

    def stop(self) -> None:
        """End all calls, later ones too."""
        self._stopped = True
        for block in list(self._blocks):
            block.end()
