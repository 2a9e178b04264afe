"""The duo command as a child process, as a user starts it."""

from __future__ import annotations

import json
import os
import random
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

READY_S = 60.0
QUESTION = "Write about the difference between concurrency and parallelism in Python, please."
"""The likeliest two tokens of its greedy reply are always more than a logit apart.

Rows of other widths and places change logits by up to 0.53 (section W of benchmarks/RESULTS.md).
"""
PORTS = range(20_000, 32_000)  # below those that Linux gives to outgoing connections

_chance = random.SystemRandom()  # the seed of `random` is the same in every test process


def free_port() -> int:
    """Return a port to listen on that no outgoing connection takes before duo does."""
    while True:
        port = _chance.choice(PORTS)
        with socket.socket() as one:
            try:
                one.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port


def until(condition: Callable[[], object], seconds: float, what: str) -> None:
    """Wait for a condition; AssertionError if it does not come true in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def run(*arguments: str, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    """Run a command that is expected to end by itself."""
    return subprocess.run(
        [sys.executable, "-m", "server", *arguments],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        stdin=subprocess.DEVNULL,
    )


class Duo:
    """A running duo up or duo serve, with its output in a file; leaving the context stops it."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = folder / "duo.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "server", *arguments, "--port", str(self.port)],
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env={**os.environ, "TMPDIR": str(folder), "XDG_RUNTIME_DIR": str(folder)},
            )

    def __enter__(self) -> Duo:
        return self

    def __exit__(self, *_: object) -> None:
        """Stop it; pytest shows what it printed beside a failure."""
        self.stop()
        print(f"{self.log}:", self.log.read_text(errors="replace"), sep="\n")

    def wait_until_ready(self, n_drafters: int = 0) -> None:
        until(lambda: self.health() is not None, READY_S, "duo did not come up: " + self.log.read_text())
        until(lambda: len(self.drafters()) >= n_drafters, READY_S, "no drafter: " + self.log.read_text())

    def health(self) -> dict[str, Any] | None:
        assert self.process.poll() is None, self.log.read_text()
        try:
            response = httpx.get(f"{self.url}/health", timeout=5)
        except httpx.TransportError:
            return None
        return response.json() if response.status_code == 200 else None

    def drafters(self) -> list[dict[str, Any]]:
        health = self.health() or {"drafters": []}
        return [d for d in health["drafters"] if d["state"] == "accepted"]

    def ask(self, content: str, **fields: Any) -> dict[str, Any]:
        body = {"messages": [{"role": "user", "content": content}], "temperature": 0, **fields}
        response = httpx.post(f"{self.url}/v1/chat/completions", json=body, timeout=60)
        assert response.status_code == 200, response.text
        return response.json()

    def descendants(self) -> set[int]:
        """Return the process ids below this one, by /proc."""
        parents = {int(p.name): parent_of(p) for p in Path("/proc").iterdir() if p.name.isdigit()}
        found: set[int] = set()
        grown = True
        while grown:
            new = {pid for pid, ppid in parents.items() if ppid in found | {self.process.pid}} - found
            found |= new
            grown = bool(new)
        return found

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal, wait, and return the exit status."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(READY_S)


def printed(duo: Duo) -> list[str]:
    """Return the arguments of the command that duo printed."""
    until(lambda: "duo draft --redis" in duo.log.read_text(), READY_S, "no command was printed")
    [command] = re.findall(r"duo (draft --redis .*)", duo.log.read_text())
    return shlex.split(command)


@contextmanager
def joined(arguments: list[str], folder: Path, name: str = "second") -> Generator[subprocess.Popen[bytes]]:
    """Start a drafter by this command, in a terminal of its own, and kill it at the end.

    pytest shows what it printed beside a failure.
    """
    path = folder / "drafter.log"
    with path.open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "server", *arguments, "--name", name],
            stdout=log,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            cwd=folder,
        )
    try:
        yield process
    finally:
        print(f"{path}, exit status {process.poll()}:", path.read_text(errors="replace"), sep="\n")
        process.kill()
        process.wait()


def endless_reply(duo: Duo) -> Generator[dict[str, Any]]:
    """Yield the chunks of a reply that does not end before it is left."""
    body = {
        "messages": [{"role": "user", "content": "Count from one to one million in words."}],
        "stream": True,
        "ignore_eos": True,
        "context_shift": True,
        "max_tokens": 1_000_000,
    }
    with httpx.stream("POST", f"{duo.url}/v1/chat/completions", json=body, timeout=60) as response:
        assert response.status_code == 200, response.read()
        for line in response.iter_lines():
            if line.startswith("data: {"):
                yield json.loads(line[6:])


def parent_of(process: Path) -> int:
    try:
        found = re.search(r"^PPid:\s+(\d+)", (process / "status").read_text(), re.MULTILINE)
    except OSError:
        return 0
    return int(found[1]) if found else 0


def alive(pid: int) -> bool:
    """Return True if a process exists and is not a zombie."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
