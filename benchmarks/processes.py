"""Run servers as child processes: start on a free port, wait until healthy, measure CPU time, end."""

from __future__ import annotations

import argparse
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from benchmarks.client import ReplyError, call_json
from server.errors import StartupError

READY_S = 120.0
END_S = 15.0
HEALTH_S = 5.0
READY_POLL_S = 0.05
# A server is calm once it took less than CALM_SHARE of a core for CALM_S: a lead waits 2 s without a request
# before it measures its steps, for 30 s at most (server/lead/idle_measuring.py).
CALM_S, CALM_SHARE, MOST_CALMING_S = 4.0, 0.1, 60.0
PACKAGED = Path(__file__).with_name("xllamacpp_server.py")


@dataclass(frozen=True, slots=True)
class Command:
    """The command that starts a server; `{port}` in the arguments becomes the port."""

    name: str  # for tables
    arguments: tuple[str, ...]
    drafts: bool = False  # it is ready only with a drafter or a draft model of its own


Options: TypeAlias = dict[str, Any]
"""Options for flags(), by name."""


class Process:
    """A server on its own port.

    Its output goes to a file, whose end is quoted in errors. company: makes a context to enter around each
    request to this server.
    """

    def __init__(self, command: Command, port: int | None = None) -> None:
        """Start the server.

        port: None: a free port.
        """
        self.name = command.name
        self.drafts = command.drafts
        self.company: Callable[[], AbstractContextManager[object]] = nullcontext
        self._command = command
        self._start(port or free_port())

    def _start(self, port: int) -> None:
        self.port = port
        arguments = [argument.replace("{port}", str(port)) for argument in self._command.arguments]
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

    def __exit__(self, *_: object) -> None:
        self.stop()

    def wait_ready(self, n_drafters: int = 0, timeout_s: float = READY_S) -> None:
        """Wait until GET /health is 200 and lists n_drafters or more.

        If the command drafts, wait for at least one, unless the draft model is in the lead. Raises
        StartupError.
        """
        deadline = time.monotonic() + timeout_s
        while not self._ready(n_drafters):
            self.check_alive()
            if time.monotonic() > deadline:
                raise StartupError(f"{self.name} is not ready after {timeout_s:.0f} s: {self._last_lines()}")
            time.sleep(READY_POLL_S)

    def wait_calm(self) -> None:
        """Wait, at most MOST_CALMING_S, until the server is idle; give up if /proc does not tell."""
        deadline = time.monotonic() + MOST_CALMING_S
        while time.monotonic() < deadline:
            share = idle_cpu([self], CALM_S)[0]
            if share is None or share < CALM_SHARE:
                return

    def check_alive(self) -> None:
        """Raise StartupError if the server ended."""
        status = self._process.poll()
        if status is not None:
            raise StartupError(f"{self.name} ended with status {status}: {self._last_lines()}")

    def _ready(self, n_drafters: int) -> bool:
        health = self.health()
        if self.drafts and health.get("draft_mode") != "sync":
            n_drafters = max(1, n_drafters)
        drafters: list[dict[str, Any]] = health.get("drafters", [])
        for drafter in drafters if n_drafters else ():
            if drafter.get("state") == "refused":
                raise StartupError(f"{self.name} refused its drafter: {drafter.get('reason')}")
        return bool(health) and len(drafters) >= n_drafters

    def health(self) -> dict[str, Any]:
        """Return the object of GET /health; {} unless the status is 200."""
        try:
            return dict(call_json(self.port, "/health", timeout_s=HEALTH_S))
        except (ReplyError, ValueError, TypeError):
            return {}

    def cpu_seconds(self) -> float | None:
        """Return the CPU seconds so far of the process and its descendants; None without /proc."""
        try:
            return _tree_cpu_seconds(self._process.pid)
        except OSError:
            return None

    def memory_bytes(self) -> int | None:
        """Return the resident bytes of the main process; None if /proc lacks them."""
        try:
            status = Path(f"/proc/{self._process.pid}/status").read_text()
        except OSError:
            return None
        lines = (line for line in status.splitlines() if line.startswith("VmRSS:"))
        return next((1024 * int(line.split()[1]) for line in lines), None)

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait(self) -> int:
        """Wait until the server ends by itself, and return its exit status."""
        return self._process.wait()

    def stop(self) -> None:
        """Ask the server to end; kill it after END_S. May be called twice."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(timeout=END_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._log.close()

    def restart(self) -> None:
        """Start the server again on another port, and wait until it is ready. Raises StartupError."""
        self.stop()
        self._start(free_port())
        self.wait_ready()

    def _last_lines(self) -> str:
        self._log.seek(0)
        return " / ".join(self._log.read().decode(errors="replace").strip().splitlines()[-5:])


def free_port() -> int:
    """Return a free port below the ephemeral ones, which outgoing connections take."""
    while True:
        port = random.randrange(20_000, 32_000)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def _tree_cpu_seconds(root: int) -> float:
    """Return a process tree's CPU seconds from /proc/PID/stat.

    Parent is field 4, user and system ticks are fields 14 and 15. Raises OSError.
    """
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


def start(stack: ExitStack, commands: Iterable[Command]) -> list[Process]:
    """Start servers one after the other, each once the one before is idle, and return them.

    Otherwise a start would disturb a server's measurements, which decide how it drafts. The stack ends
    servers. Raises StartupError.
    """
    started: list[Process] = []
    for command in commands:
        started.append(stack.enter_context(Process(command)))
        started[-1].wait_ready()
        started[-1].wait_calm()
    return started


def idle_cpu(processes: Sequence[Process], seconds: float) -> list[float | None]:
    """Return each process's share of one core during `seconds`; None if unknown."""
    before = [process.cpu_seconds() for process in processes]
    time.sleep(seconds)
    after = [process.cpu_seconds() for process in processes]
    return [None if b is None or a is None else (a - b) / seconds for b, a in zip(before, after, strict=True)]


def on_device(device: int | None) -> tuple[str, ...]:
    """Return the prefix that shows a command only this CUDA device; empty if `device` is None."""
    return () if device is None else ("env", f"CUDA_VISIBLE_DEVICES={device}")


def options_of(args: argparse.Namespace, *names: str, **more: object) -> Options:
    """Return the named arguments of a program, and `more`."""
    return {name: vars(args)[name] for name in names} | more


def flags(**options: object) -> tuple[str, ...]:
    """Return flags: ctx_size=4096 is --ctx-size 4096, True a flag without a value, None is left out."""
    found: list[str] = []
    for name, value in options.items():
        if value is not None:
            found += [f"--{name.replace('_', '-')}"] + ([] if value is True else [str(value)])
    return tuple(found)


def duo(command: str, *more: str, device: int | None = None, **options: object) -> tuple[str, ...]:
    """Return a command line of this checkout's duo on a CUDA device."""
    line = (*on_device(device), sys.executable, "-m", "server", command, *flags(**options), *more)
    return (*line, "--host", "127.0.0.1", "--port", "{port}")


def llama_server(binary: Path, *more: str, device: int | None = None, **options: object) -> tuple[str, ...]:
    """Return a command line of llama-server with its model on a CUDA device.

    Args:
        binary: The program, or a Python interpreter that has the package xllamacpp.
        more: Further flags.
        device: The CUDA device; None: the processor, or what the program chooses.
        options: Flags by their names.
    """
    if device is not None:
        more = ("-dev", f"CUDA{device}", "-ngl", "99", *more)
    program = (str(binary), str(PACKAGED)) if binary.name.startswith("python") else (str(binary),)
    return (*program, *flags(**options), "--offline", "--host", "127.0.0.1", "--port", "{port}", *more)


def drafter(name: str, *, device: int | None = None, **options: object) -> Command:
    """Return the command of a drafter on a CUDA device."""
    line = (*on_device(device), sys.executable, "-m", "drafters", *flags(name=name, **options))
    return Command(name, line)
