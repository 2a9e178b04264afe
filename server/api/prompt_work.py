"""Threads for parsing, rendering and tokenising, since a long prompt would block the event loop."""

from __future__ import annotations

import asyncio
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from threading import Thread, local
from typing import Any, TypeAlias, TypeVar, TypeVarTuple

from server.engine.request_account import tenant
from server.tenants import FairSemaphore, Places

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
Job: TypeAlias = tuple[Callable[[], Any], "asyncio.Future[Any]"]

N_THREADS = 2
"""Number of threads; Python runs one at a time anyway, but a short prompt can overtake a long one."""
MAX_WAITING = 64
"""Maximum waiting prompts; the same number as the default of --max-queued."""
PROMPT_STUCK_S = 30.0
"""Seconds after which work counts as stuck: three times what a template may take to render."""
LONG_S = 600.0
"""Seconds after which work on a picture counts as stuck: the default of --watchdog for a step."""
PROMPT_CLOSE_S = 5.0
"""Seconds for running work to end when the server shuts down."""

_own = local()  # attributes per thread: `done`, the future of the work that the thread runs


class PromptWork:
    """Runs work on a few threads, for one event loop.

    The threads are daemons, so hanging work does not keep the process alive. They are reused, because
    starting a thread blocks the loop for 1 ms while a decode uses all cores.
    """

    def __init__(self, max_waiting: int = MAX_WAITING) -> None:
        self._turns = FairSemaphore(N_THREADS, Places(max_waiting))
        self._running: dict[asyncio.Future[Any], float] = {}  # start time of running work
        self._jobs = SimpleQueue[Job | None]()
        self._end: Callable[[], None] | None = None  # ends the threads; None before they start

    @property
    def n_waiting(self) -> int:
        return self._turns.n_waiting

    async def run(self, work: Callable[[*Ts], T], *arguments: *Ts) -> T:
        """Return the result of work(*arguments).

        If the caller is cancelled, waiting work never begins, and the result of running work is dropped.

        Raises:
            BusyError: max_waiting calls are waiting, or this tenant has reached its limit of waiting calls.
        """
        whose = tenant()
        await self._turns.enter(whose)
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._running[done] = time.monotonic()
        done.add_done_callback(partial(self._work_ended, whose))
        if self._end is None:
            self._end = weakref.finalize(self, _end, self._jobs)
            for _ in range(N_THREADS):
                Thread(target=_work_off, args=(self._jobs,), name="duo-prompt", daemon=True).start()
        self._jobs.put((partial(work, *arguments), done))
        return await asyncio.shield(done)

    def expect_long(self) -> None:
        """Let the calling work run for LONG_S more seconds before it counts as stuck."""
        if (done := getattr(_own, "done", None)) in self._running:
            self._running[done] = time.monotonic() + LONG_S - PROMPT_STUCK_S

    def stuck(self) -> str | None:
        """Return a message if work has run longer than PROMPT_STUCK_S, else None. Safe from any thread."""
        due = time.monotonic() - PROMPT_STUCK_S
        hangs = any(began < due for began in list(self._running.values()))
        return f"a prompt was not prepared in {PROMPT_STUCK_S:.0f} s" if hangs else None

    async def close(self) -> None:
        """Wait for running work, at most PROMPT_CLOSE_S, and end the threads."""
        if self._running:
            await asyncio.wait(self._running, timeout=PROMPT_CLOSE_S)
        if self._end is not None:
            self._end()
            self._end = None

    def _work_ended(self, whose: str, done: asyncio.Future[T]) -> None:
        del self._running[done]
        self._turns.leave(whose)
        done.exception()  # marks an error as seen, since the caller may be gone


def _end(jobs: SimpleQueue[Job | None]) -> None:
    for _ in range(N_THREADS):
        jobs.put(None)


def _work_off(jobs: SimpleQueue[Job | None]) -> None:
    while (job := jobs.get()) is not None:
        work, done = job
        _own.done = done
        try:
            deliver = partial(done.set_result, work())
        except BaseException as error:
            deliver = partial(done.set_exception, error)
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            done.get_loop().call_soon_threadsafe(deliver)
        _own.done = None
        del job, work, done, deliver  # freed before the wait for the next job
