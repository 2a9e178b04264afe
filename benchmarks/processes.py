"""Servers as child processes: started on a free port, awaited by their health check, measured, ended."""

from __future__ import annotations

import http.client
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from server.errors import StartupError

START_S = 120.0
STOP_S = 15.0
POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class Command:
    """`name` for tables; `{port}` in the arguments becomes the port."""

    name: str
    arguments: tuple[str, ...]


class Process:
    """A server on a port of its own. Its output goes to a file that is quoted when it does not start.

    company: what there is besides, whenever it is this server's turn to be asked, and only then.
    """

    def __init__(self, command: Command, port: int | None = None) -> None:
        """port: a free one unless given."""
        self.name = command.name
        self.company: Callable[[], AbstractContextManager[object]] = nullcontext
        self.port = port or free_port()
        arguments = [argument.replace("{port}", str(self.port)) for argument in command.arguments]
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        try:
            self._process = subprocess.Popen(
                arguments, stdin=subprocess.DEVNULL, stdout=self._log, stderr=subprocess.STDOUT
            )
        except OSError as error:
            self._log.close()
            raise StartupError(f"cannot run {arguments[0]} ({error.strerror})") from error

    def __enter__(self) -> Process:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def wait_ready(self, n_drafters: int = 0, timeout_s: float = START_S) -> None:
        """Until GET /health is 200 and that many drafters are there. Raises StartupError."""
        deadline = time.monotonic() + timeout_s
        while not self._ready(n_drafters):
            self.check_alive()
            if time.monotonic() > deadline:
                raise StartupError(f"{self.name} is not ready after {timeout_s:.0f} s: {self._last_lines()}")
            time.sleep(POLL_S)

    def check_alive(self) -> None:
        """Raises StartupError when it has ended."""
        status = self._process.poll()
        if status is not None:
            raise StartupError(f"{self.name} ended with status {status}: {self._last_lines()}")

    def wait_drafting(self) -> None:
        """Until it is ready and has what drafts for it: a drafter, or a draft model of its own. Raises
        StartupError."""
        self.wait_ready()
        if self.health().get("draft_mode") != "sync":
            self.wait_ready(n_drafters=1)

    def _ready(self, n_drafters: int) -> bool:
        status, health = self._get_health()
        if not n_drafters:
            return status == 200
        drafters: list[dict[str, Any]] = health.get("drafters", [])
        for drafter in drafters:
            if drafter.get("state") == "refused":
                raise StartupError(f"{self.name} refused its drafter: {drafter.get('reason')}")
        return status == 200 and len(drafters) >= n_drafters

    def health(self) -> dict[str, Any]:
        """GET /health; empty when the server does not answer with an object."""
        return self._get_health()[1]

    def _get_health(self) -> tuple[int, dict[str, Any]]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        try:
            connection.request("GET", "/health")
            response = connection.getresponse()
            body: Any = json.loads(response.read())
            return response.status, dict(body)
        except (OSError, http.client.HTTPException, ValueError, TypeError):
            return 0, {}
        finally:
            connection.close()

    def cpu_seconds(self) -> float | None:
        """CPU time so far of the process and its descendants; None where /proc does not tell."""
        try:
            return _tree_cpu_seconds(self._process.pid)
        except OSError:
            return None

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait(self) -> int:
        """Until it ends by itself. Returns its exit status."""
        return self._process.wait()

    def stop(self) -> None:
        """Ask it to end, insist after STOP_S. Harmless when it has ended."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(timeout=STOP_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._log.close()

    def _last_lines(self) -> str:
        self._log.seek(0)
        return " / ".join(self._log.read().decode(errors="replace").strip().splitlines()[-5:])


def free_port() -> int:
    """A free port that no outgoing connection will be given meanwhile: below the ephemeral ones."""
    while True:
        port = random.randrange(20_000, 32_000)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def _tree_cpu_seconds(root: int) -> float:
    """From /proc/PID/stat: parent is field 4, user and system ticks are fields 14 and 15. Raises OSError."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(FileNotFoundError, ProcessLookupError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                parents[int(entry.name)] = int(fields[1])
                ticks[int(entry.name)] = int(fields[11]) + int(fields[12])
    members = {root}
    while more := {pid for pid, parent in parents.items() if parent in members} - members:
        members |= more
    return sum(ticks.get(pid, 0) for pid in members) / os.sysconf("SC_CLK_TCK")


def idle_cpu(processes: Sequence[Process], seconds: float) -> list[float | None]:
    """What each takes of one core while nobody asks anything, 1.0 being all of it."""
    before = [process.cpu_seconds() for process in processes]
    time.sleep(seconds)
    after = [process.cpu_seconds() for process in processes]
    return [None if b is None or a is None else (a - b) / seconds for b, a in zip(before, after, strict=True)]


def duo(*arguments: str) -> tuple[str, ...]:
    """A command line of this checkout's duo, on a port to be chosen."""
    return (sys.executable, "-m", "server", *arguments, "--host", "127.0.0.1", "--port", "{port}")
