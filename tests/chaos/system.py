"""A live system: Redis, a lead, drafters and the network between them, each of which may fail."""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import threading
from collections import Counter
from collections.abc import Generator
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import redis

from benchmarks.client import ReplyError, call_json
from benchmarks.link import Link
from tests.chaos import inside
from tests.process.duo import free_port, until
from tests.redis.members import Server

READY_S = 60.0
CALM_S = 30.0  # until all is as it was: presence expires after 2 s, a stalled Redis is given up after 2 s

_forks = multiprocessing.get_context("forkserver")  # a start costs a fork, not two seconds of imports
_forks.set_forkserver_preload(["tests.chaos.inside", "drafters.drafter_cli"])


class Program:
    """A duo process that may be killed and restarted; `log` has the lines of all its lives."""

    def __init__(self, name: str, toy: bool, arguments: list[str], folder: Path) -> None:
        self.name = name
        self.log: list[str] = []
        self._arguments = toy, arguments, str(folder)
        self.start()

    @property
    def pid(self) -> int:
        return self._process.pid or 0

    @property
    def alive(self) -> bool:
        return self._process.is_alive()

    def start(self) -> None:
        reading, writing = _forks.Pipe(duplex=False)
        self._process = _forks.Process(target=inside.run, args=(writing, *self._arguments))
        self._process.start()
        writing.close()
        self._reader = threading.Thread(target=self._read, args=(reading,))
        self._reader.start()

    def _read(self, reading: Connection) -> None:
        with reading, open(reading.fileno(), errors="replace", closefd=False) as lines:
            for line in lines:
                self.log.append(line.rstrip())

    def send(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def end(self, number: signal.Signals = signal.SIGKILL) -> None:
        """Signal it and wait for its end."""
        self.send(number)
        self._process.join()
        self._reader.join()

    def restart(self) -> None:
        self.end()
        self.start()

    def footprint(self) -> Counter[str]:
        """Return its threads, and its descriptors by kind."""
        place = Path("/proc", str(self.pid))
        found = Counter({"thread": len(list((place / "task").iterdir()))})
        for descriptor in (place / "fd").iterdir():
            with suppress(OSError):
                target = os.readlink(descriptor)
                found[target if target.startswith("/") else re.sub(r"\W.*", "", target)] += 1
        return found

    def memory(self) -> int:
        """Return the bytes of its own memory, as own_memory() does."""
        return inside.own_memory(self.pid)


class System:
    """A lead, drafters and Redis.

    folder: for caches. models: files of target and draft model; None for toys.
    """

    def __init__(self, folder: Path, models: tuple[Path, Path] | None = None, n_drafters: int = 2) -> None:
        port = free_port()
        self.folder = folder
        self.cache = folder / "conversations"
        self.redis = Server("--port", str(port))
        self.redis.start()
        self.client = redis.Redis.from_url(self.redis.url)
        names = ["lead", *(f"drafter-{i}" for i in range(n_drafters))]
        self.links = {name: Link("127.0.0.1", port) for name in names}
        self.port = free_port()
        self.lead_ended = False  # in this schedule: running replies are lost
        self.models = models
        self.programs = {name: self._program(name) for name in names}

    @property
    def lead(self) -> Program:
        return self.programs["lead"]

    @property
    def drafters(self) -> list[Program]:
        return [program for name, program in self.programs.items() if name != "lead"]

    def _program(self, name: str) -> Program:
        url = f"redis://127.0.0.1:{self.links[name].port}"
        exact = ["--cache-type-k", "f32", "--cache-type-v", "f32", "--flash-attn", "off"]
        common = ["--redis", url, "--threads", "1", "--ctx-size", "4096"]
        if self.models is not None:
            common += [*exact, "--model", str(self.models[name != "lead"])]
        if name != "lead":
            return Program(name, not self.models, ["draft", *common, "--name", name], self.folder)
        flags = ["--port", str(self.port), "--grace", "1", "--draft-max", "8"]
        flags += ["--no-gate", "--no-lookup", "--no-embeddings"]
        flags += ["--cache-ram", "8", "--cache-dir", str(self.cache), "--cache-disk", "64"]
        return Program(name, not self.models, ["serve", *common, *flags], self.folder)

    def get(self, path: str) -> Any:
        """Return the lead's answer, or None."""
        with suppress(ReplyError, ValueError):
            return call_json(self.port, path, timeout_s=10)

    def is_whole(self) -> bool:
        """Return True if the lead sees exactly the living drafters.

        Restarts what has ended: a process that finds no Redis at its start ends, as under a supervisor.
        """
        for program in self.programs.values():
            if not program.alive:
                program.restart()
        health = self.get("/health")
        known: list[str] = [one["id"] for one in health["drafters"]] if health else []
        lives = sorted(f"{one.name}-{one.pid}" for one in self.drafters)
        return sorted(id.rpartition("-")[0] for id in known) == lives

    def is_idle(self) -> bool:
        health = self.get("/health")
        return bool(health) and health["slots"]["busy"] == health["queued"] == 0

    def until_whole(self, seconds: float = CALM_S) -> None:
        try:
            until(self.is_whole, seconds, "the drafters did not come back")
        except AssertionError as error:
            last = {name: program.log[-5:] for name, program in self.programs.items()}
            raise AssertionError(f"{error}: {self.get('/health')}, {last}") from error

    def until_idle(self) -> None:
        until(self.is_idle, CALM_S, "a slot stays busy")

    def close(self) -> None:
        with ExitStack() as stack:
            stack.callback(self.redis.remove)
            stack.callback(self.client.close)
            for link in self.links.values():
                stack.callback(link.close)
            for program in self.programs.values():
                stack.callback(program.end)


@contextmanager
def live(folder: Path, models: tuple[Path, Path] | None = None, n_drafters: int = 2) -> Generator[System]:
    """Yield a System that is ready."""
    system = System(folder, models, n_drafters)
    try:
        system.until_whole(READY_S)
        yield system
    finally:
        system.close()
