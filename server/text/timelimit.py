"""Ends Python code of others that takes too long."""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from server.errors import TimeLimitError

T = TypeVar("T")

AGAIN_S = 0.1  # between two attempts to end a block: far longer than leaving it takes


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
    """A call in one thread."""

    def __init__(self) -> None:
        self._thread = ctypes.c_ulong(threading.get_ident())
        self._lock = threading.Lock()
        self._left = False
        self._ended = False
        self._timer: threading.Timer | None = None

    def end(self, *, again: bool = False) -> None:
        """Raise _Ended in the thread every AGAIN_S until the block has been left: a finalizer may swallow
        it."""
        with self._lock:
            if not self._left and (again or not self._ended):
                self._ended = True
                _tell_no_swallowed_end()
                ctypes.pythonapi.PyThreadState_SetAsyncExc(self._thread, ctypes.py_object(_Ended))
                self.end_in(AGAIN_S, again=True)

    def end_in(self, seconds: float, *, again: bool = False) -> None:
        self._timer = threading.Timer(seconds, self.end, kwargs={"again": again})
        self._timer.daemon = True
        self._timer.start()

    def leave(self) -> None:
        """No _Ended is raised after this; one that is pending is raised here."""
        with self._lock:
            self._left = True
        if self._ended:
            for _ in range(1000):  # the interpreter raises at a jump back
                pass
        elif self._timer is not None:
            self._timer.cancel()


class TimeLimit:
    """Limits calls in any thread to a number of seconds each. It cannot interrupt a call into C, and what is
    called should hold no lock that others need."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._blocks: set[_Block] = set()
        self._stopped = False

    def run(self, work: Callable[[], T]) -> T:
        """The result of work. Raises TimeLimitError if it takes too long or stop() is called."""
        block = _Block()
        try:
            self._blocks.add(block)
            if self._stopped:
                raise _Ended
            block.end_in(self._seconds)
            try:
                return work()
            finally:
                block.leave()
        except _Ended:
            block.leave()  # again, if _Ended came before it was left; the next one is AGAIN_S away
            raise TimeLimitError(self._seconds) from None
        finally:
            self._blocks.discard(block)

    def stop(self) -> None:
        """End all calls, later ones too."""
        self._stopped = True
        for block in list(self._blocks):
            block.end()
