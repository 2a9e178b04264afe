"""Run deeply recursive work on a thread with a large stack."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")

STACK_BYTES = 128 << 20
"""Four times what the deepest schema of MAX_CHARACTERS takes: 5,830 levels, each an `items` or a `$ref`, fit
24 to 32 MiB with llguidance 1.9.1 on x86-64, 3 to 10 KB a level. A usual stack has 8 MiB, which 1,000 levels
overflow, and an overflow ends the process. Only the used part takes memory, until the work has ended. Half:
there is still room for twice the deepest schema."""
_STARTING = threading.Lock()  # the stack size is a setting for all threads that start


def on_deep_stack(work: Callable[[], T]) -> T:
    """Run `work` on a thread with a large stack; return its result, or raise its exception."""
    done = Future[T]()

    def run() -> None:
        try:
            done.set_result(work())
        except BaseException as error:  # raised again for the caller
            done.set_exception(error)

    thread = threading.Thread(target=run, name="duo-grammar", daemon=True)
    with _STARTING:
        usual = threading.stack_size(STACK_BYTES)
        try:
            thread.start()
        finally:
            threading.stack_size(usual)
    return done.result()
