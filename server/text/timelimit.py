"""Ends Python code of others that takes too long."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Generator
from contextlib import contextmanager

from server.errors import TimeLimitError


class _Ended(BaseException):
    """Raised in a block that shall end. A BaseException, so that the code does not catch it."""


class _Block:
    """One block in one thread."""

    def __init__(self) -> None:
        self._thread = ctypes.c_ulong(threading.get_ident())
        self._lock = threading.Lock()
        self._left = False
        self._ended = False

    def end(self) -> None:
        """Raise _Ended in the block's thread, unless the block has been left."""
        with self._lock:
            if not self._left and not self._ended:
                self._ended = True
                ctypes.pythonapi.PyThreadState_SetAsyncExc(self._thread, ctypes.py_object(_Ended))

    def leave(self) -> None:
        """No _Ended is raised after this; one that is pending is raised here."""
        with self._lock:
            self._left = True
        if self._ended:
            for _ in range(1000):  # the interpreter raises at a jump back
                pass


class TimeLimit:
    """Limits blocks in any thread to a number of seconds each. It cannot interrupt a call into C, and a block
    should hold no lock that others need."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._blocks: set[_Block] = set()
        self._stopped = False

    @contextmanager
    def __call__(self) -> Generator[None]:
        """Raises TimeLimitError if the block takes too long or stop() is called."""
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
        """End all blocks, later ones too."""
        self._stopped = True
        for block in list(self._blocks):
            block.end()
