"""Python code of others, ended when it takes too long."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Generator
from contextlib import contextmanager

from server.errors import TimeLimitError


class _Ended(BaseException):
    """Raised in a block that shall end. No Exception: code that catches those shall not go on."""


class _Block:
    """One block of one thread."""

    def __init__(self) -> None:
        self._thread = ctypes.c_ulong(threading.get_ident())
        self._lock = threading.Lock()
        self._left = False
        self._ended = False

    def end(self) -> None:
        """Raise in it, from another thread, unless it has been left."""
        with self._lock:
            if not self._left and not self._ended:
                self._ended = True
                ctypes.pythonapi.PyThreadState_SetAsyncExc(self._thread, ctypes.py_object(_Ended))

    def leave(self) -> None:
        """What was raised in it and has not come yet comes here."""
        with self._lock:
            self._left = True
        if self._ended:
            for _ in range(1000):  # the interpreter raises at a jump back
                pass


class TimeLimit:
    """A limit of as many seconds for each of its blocks, in any thread. A call into C is waited for: keep
    those out of a block that may take long, and locks that others need."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._blocks: set[_Block] = set()
        self._stopped = False

    @contextmanager
    def __call__(self) -> Generator[None]:
        """Raises TimeLimitError out of the block when it has taken too long, or stop() was called."""
        block = _Block()
        timer = threading.Timer(self._seconds, block.end)
        timer.daemon = True
        self._blocks.add(block)
        try:
            timer.start()
            if self._stopped:
                block.end()
            try:
                yield
            finally:
                block.leave()
        except _Ended:
            raise TimeLimitError(self._seconds) from None
        finally:
            timer.cancel()
            self._blocks.discard(block)

    def stop(self) -> None:
        """End all blocks, and those that are entered later."""
        self._stopped = True
        for block in list(self._blocks):
            block.end()
