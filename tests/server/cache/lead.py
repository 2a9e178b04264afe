"""Snapshots as a lead has them, with a disk that can be stopped and a clock."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

from server.cache.catalogue import Found
from server.cache.files import RESCAN_NS, DiskTier
from server.cache.record import Record
from server.cache.snapshots import Snapshots
from tests.checks import check_snapshots
from tests.server.cache.clock import Clock

PLENTY = 1 << 20
WAIT_S = 30.0
Ids = tuple[int, ...]


def state_of(tokens: Ids, salt: str = "", size: int = 100) -> bytes:
    """Return bytes that stand for a model's state and differ for different conversations."""
    return hashlib.shake_128(repr((tokens, salt)).encode()).digest(size)


class GatedTier(DiskTier):
    """A disk that writes and reads only while its gate is open."""

    def __init__(self, path: Path, clock: Clock, budget: int) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.begun = threading.Event()
        self.telling = threading.Event()  # what became of a write
        self.telling.set()
        super().__init__(path, budget_bytes=budget, fingerprint="toy", clock=clock)

    def write(self, record: Record, going_on: Callable[[], bool]) -> tuple[bool, list[str]]:
        self.begun.set()
        assert self.gate.wait(WAIT_S)
        became = super().write(record, going_on)
        assert self.telling.wait(WAIT_S)
        return became

    def read(self, name: str, *, used: bool = True) -> bytes | None:
        assert self.gate.wait(WAIT_S)
        return super().read(name, used=used)


class Lead:
    """Snapshots over a directory, with clock, gate, and the engine's reaction when something is ready."""

    def __init__(
        self,
        path: Path | None,
        *,
        memory: int = PLENTY,
        disk: int = PLENTY,
        backlog: int = PLENTY,
        partial: bool = True,
    ) -> None:
        self.clock = Clock()
        self.path = path
        self.tier = GatedTier(path, self.clock, disk) if path else None
        self.woken: list[str] = []
        self.ready = threading.Semaphore(0)
        self.snapshots = Snapshots(
            memory_bytes=memory,
            disk=self.tier,
            on_ready=self._on_ready,
            backlog_bytes=backlog,
            partial=partial,
        )

    def put(self, *tokens: int, salt: str = "", size: int = 100) -> None:
        self.snapshots.put(tokens, salt, state_of(tokens, salt, size))

    def match(self, *tokens: int, salt: str = "") -> Found | None:
        self.clock.ahead += RESCAN_NS
        return self.snapshots.match(tokens, salt)

    def found(self, *tokens: int, salt: str = "") -> tuple[int, str] | None:
        """Return length and tier of the match."""
        found = self.match(*tokens, salt=salt)
        return (found.length, found.tier) if found else None

    def fetch(self, key: str) -> bytes | None:
        self.snapshots.fetch(key)
        assert self.ready.acquire(timeout=WAIT_S), "on_ready was not called"
        return self.snapshots.get(key)

    def get(self, *tokens: int, salt: str = "") -> bytes | None:
        """Return the state, from wherever it is."""
        found = self.match(*tokens, salt=salt)
        if found is None:
            return None
        return self.snapshots.get(found.key) if found.tier == "memory" else self.fetch(found.key)

    def flush(self) -> None:
        assert self.snapshots.flush(WAIT_S) == 0
        check_snapshots(self.snapshots)

    def files(self) -> list[Path]:
        assert self.path
        return sorted(self.path.iterdir())

    def restarted(self) -> Lead:
        self.flush()
        self.close()
        return Lead(self.path)

    def close(self) -> None:
        if self.tier:
            self.tier.gate.set()
            self.tier.telling.set()
        self.snapshots.close()

    def _on_ready(self) -> None:
        self.woken.append(threading.current_thread().name)
        self.ready.release()


Make = Callable[..., Lead]


@contextmanager
def leads() -> Generator[Make]:
    made: list[Lead] = []

    def make(path: Path | None = None, *, partial: bool = True, **budgets: int) -> Lead:
        made.append(Lead(path, partial=partial, **budgets))
        return made[-1]

    try:
        yield make
    finally:
        for lead in made:
            lead.close()


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def damage(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-10] ^= 1
    path.write_bytes(content)
