"""The drafter processes of `duo up`: started, started again when they die, and ended with duo."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from types import TracebackType

logger = logging.getLogger("duo.children")

SOONEST_S, LATEST_S = 0.2, 30.0  # before a drafter that died is started again; doubles with every quick death
HEALTHY_S = 10.0  # lived this long: the next death is not held against it


class Child:
    """One drafter process. Its standard input is a pipe that closes when duo dies, however it dies."""

    def __init__(
        self, name: str, arguments: Sequence[str], environment: Mapping[str, str] | None = None
    ) -> None:
        """arguments: the flags of duo-drafter; environment: what differs from duo's own."""
        self._name = name
        self._environment = {**os.environ, **(environment or {})}
        self._command = [sys.executable, "-m", "drafters", *arguments, "--end-with-parent"]
        self._ending = threading.Event()
        self._process = self._spawn()
        self._keeper = threading.Thread(target=self._keep, name=f"duo-{name}", daemon=True)
        self._keeper.start()

    def __enter__(self) -> Child:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ending.set()
        if self._process.stdin:
            self._process.stdin.close()
        try:
            self._process.wait(timeout=3)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._keeper.join(timeout=1)

    @property
    def pid(self) -> int:
        return self._process.pid

    def _spawn(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, env=self._environment
        )

    def _keep(self) -> None:
        wait = SOONEST_S
        while True:
            try:
                self._process.wait(timeout=HEALTHY_S)
            except subprocess.TimeoutExpired:
                wait = SOONEST_S
                continue
            if self._ending.wait(wait):
                return
            logger.warning(
                "%s ended (exit status %s), starting it again", self._name, self._process.returncode
            )
            wait = min(2 * wait, LATEST_S)
            self._process = self._spawn()
            if self._ending.is_set():
                self._process.kill()
                return
