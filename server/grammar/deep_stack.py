"""Run deeply recursive work on a thread with a large stack."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")

STACK_BYTES = 128 << 20
"""Stack size: four times what the deepest schema of MAX_CHARACTERS takes. Its 5,830 levels, each an `items`
or a `$ref`, take 24 to 32 MiB with llguidance 1.9.1 on x86-64 (3 to 10 KB a level). A usual stack has 8 MiB.
It overflows at 1,000 levels, which ends the process. Only the used part takes memory, until the work has
ended. Half the size would still be twice what the deepest schema takes."""
_STARTING = threading.Lock()  # held while the stack size is changed, which affects all threads that start


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
