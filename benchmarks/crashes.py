"""Drafters that are killed and started again by a schedule, and the share of the time they were there."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType

from benchmarks.processes import POLL_S, Command, Process
from server.errors import StartupError

PRESENT_S = 30.0  # to be seen by the lead


@dataclass(frozen=True, slots=True)
class Crash:
    """kill -9 `at` seconds after the beginning, started again `away` seconds later."""

    at: float
    away: float


def parse_schedule(text: str) -> tuple[Crash, ...]:
    """ "2:1,5:0.5": killed after 2 s for 1 s, and after 5 s for 0.5 s. Raises ValueError."""
    crashes: list[Crash] = []
    for part in text.split(","):
        at, _, away = part.partition(":")
        crash = Crash(float(at), float(away))
        if crash.at < 0 or crash.away < 0 or (crashes and crash.at < crashes[-1].at + crashes[-1].away):
            raise ValueError(f"crashes in order, not {text!r}")
        crashes.append(crash)
    return tuple(crashes)


class Crew:
    """Drafter processes of one lead, which die by a schedule. A context, which ends them all and raises
    StartupError if they did not come back. n_present: how many drafters the lead sees now."""

    def __init__(
        self, commands: Sequence[Command], schedule: Sequence[Crash], n_present: Callable[[], int]
    ) -> None:
        self._commands = commands
        self._schedule = schedule
        self._n_present = n_present
        self._processes: list[Process] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._follow_schedule, name="crashes", daemon=True)
        self._began = 0.0
        self._gone: list[tuple[float, float]] = []  # from the kill until the lead saw them again
        self._gone_since: float | None = None
        self._failure: StartupError | None = None

    def __enter__(self) -> Crew:
        try:
            self._start()
        except BaseException:
            self._stop()
            raise
        self._began = time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, _: object, error: BaseException | None, trace: TracebackType | None) -> None:
        self._ended.set()
        self._thread.join()
        self._stop()
        if self._failure and error is None:
            raise self._failure

    @property
    def n_returns(self) -> int:
        """How often they came back."""
        return len(self._gone)

    @property
    def has_failed(self) -> bool:
        """True if they did not come back; the end of the context raises."""
        return self._failure is not None

    def share_present(self) -> float:
        """Share of the time since the beginning in which the lead saw them."""
        now = time.monotonic()
        gone = sum(until - since for since, until in self._gone)
        if self._gone_since is not None:
            gone += now - self._gone_since
        return 1 - gone / (now - self._began)

    def _start(self) -> None:
        """Returns when the lead sees all of them. Raises StartupError."""
        for command in self._commands:
            self._processes.append(Process(command))
        deadline = time.monotonic() + PRESENT_S
        while self._n_present() < len(self._commands) and not self._ended.is_set():
            for process in self._processes:
                process.check_alive()
            if time.monotonic() > deadline:
                raise StartupError(f"the lead does not see its drafters after {PRESENT_S:.0f} s")
            self._ended.wait(POLL_S)

    def _stop(self) -> None:
        with ExitStack() as stack:
            for process in self._processes:
                stack.callback(process.stop)
        self._processes = []

    def _follow_schedule(self) -> None:
        try:
            for crash in self._schedule:
                self._crash_and_return(crash)
        except StartupError as error:
            self._failure = error

    def _crash_and_return(self, crash: Crash) -> None:
        if self._ended.wait(max(0.0, self._began + crash.at - time.monotonic())):
            return
        since = self._gone_since = time.monotonic()
        for process in self._processes:
            os.kill(process.pid, signal.SIGKILL)
        self._stop()
        if self._ended.wait(crash.away):
            return
        while self._n_present() > 0 and not self._ended.is_set():
            self._ended.wait(POLL_S)  # else the lead could take a new process for the old one
        self._start()
        if not self._ended.is_set():
            self._gone_since = None
            self._gone.append((since, time.monotonic()))
