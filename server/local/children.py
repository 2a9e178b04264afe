"""Child processes of `duo up`: started, restarted when they die, and ended with duo."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future

from server.llama.cuda_graphs import BY_DUO, OFF

logger = logging.getLogger("duo.children")

OWN = ((OFF, BY_DUO),)  # variables that a process sets for itself, depending on its models

SOONEST_S, LATEST_S = 0.2, 30.0  # first and longest pause before a restart; doubled after each quick death
HEALTHY_S = 10.0  # seconds that a process must live to reset its pause to SOONEST_S
DRAFTER_GRACE_S = 3.0  # seconds for a drafter to end by itself: a decode, and its goodbye to the lead


class Child:
    """A process that is restarted whenever it dies, until close().

    One thread makes all starts and lives until close(): Linux ends the process when the thread that started
    it ends (PR_SET_PDEATHSIG).
    """

    def __init__(self, name: str, start: Callable[[], subprocess.Popen[bytes]], *, grace_s: float) -> None:
        """Start the process. Raises what the first start() raises.

        Args:
            name: For the log.
            start: Starts the process.
            grace_s: Seconds that close() waits before it kills the process.
        """
        self._name, self._start, self._grace_s = name, start, grace_s
        self._ending = threading.Event()
        self._starting = threading.Lock()
        self._process: subprocess.Popen[bytes]
        first: Future[None] = Future()
        self._keeper = threading.Thread(
            target=self._keep_running, args=(first,), name=f"duo-{name}", daemon=True
        )
        self._keeper.start()
        first.result()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def ended(self) -> bool:
        return self._process.poll() is not None

    def close(self) -> None:
        """End the process: its standard input closes, and it is killed after grace_s. May be repeated."""
        self._ending.set()
        with self._starting:
            process = self._process
        _hang_up(process)
        try:
            process.wait(self._grace_s)
        except subprocess.TimeoutExpired:
            process.kill()
        self._keeper.join()

    def _keep_running(self, first: Future[None]) -> None:
        try:
            self._process = self._start()
        except BaseException as error:
            first.set_exception(error)
            return
        first.set_result(None)
        pause = SOONEST_S
        while True:
            began = time.monotonic()
            status = self._process.wait()
            _hang_up(self._process)
            if time.monotonic() - began >= HEALTHY_S:
                pause = SOONEST_S
            if self._ending.wait(pause):
                return
            logger.warning("%s ended (exit status %s), starting it again", self._name, status)
            pause = min(2 * pause, LATEST_S)
            with self._starting:
                if self._ending.is_set():
                    return
                try:
                    self._process = self._start()
                except OSError as error:  # tried again after the next pause
                    logger.warning("%s cannot be started: %s", self._name, error)


def _hang_up(process: subprocess.Popen[bytes]) -> None:
    if process.stdin:
        process.stdin.close()


def inherited() -> dict[str, str]:
    """Return the environment for children: without the variables that this process set for its own models."""
    return {name: value for name, value in os.environ.items() if (name, value) not in OWN}


def drafter(name: str, arguments: Sequence[str], environment: Mapping[str, str]) -> Child:
    """Start a drafter. It ends when its standard input closes, which happens however duo ends.

    Args:
        name: For the log.
        arguments: The flags of duo-drafter.
        environment: Variables that replace those of duo's own environment, or are added.
    """
    command = [sys.executable, "-m", "drafters", *arguments, "--end-with-parent"]
    everything = {**inherited(), **environment}

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            env=everything,
            start_new_session=True,  # Ctrl-C is for duo, which needs drafters until running replies are done
        )

    return Child(name, start, grace_s=DRAFTER_GRACE_S)
