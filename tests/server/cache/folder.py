"""A directory of snapshots, with the time in hand."""

from __future__ import annotations

from pathlib import Path

from server.cache.files import RESCAN_NS, DiskTier, Scan
from server.cache.record import Record, record, salt_digest
from tests.server.cache.clock import Clock

MODEL = "toy"
TOKENS = (5, 6, 70_000, 8)
PAYLOAD = bytes(range(256)) * 4
BUDGET = 1 << 20


class Folder:
    """A tier over a directory, with a clock of its own."""

    def __init__(self, path: Path, *, budget: int = BUDGET, model: str = MODEL) -> None:
        self.path = path
        self.clock = Clock()
        self.tier = DiskTier(path, budget_bytes=budget, fingerprint=model, clock=self.clock)

    def write(self, tokens: tuple[int, ...] = TOKENS, payload: bytes = PAYLOAD, salt: str = "") -> Record:
        one = record(self.tier.fingerprint, salt_digest(salt, self.tier.fingerprint), tokens, payload)
        ok, _ = self.tier.write(one, lambda: True)
        assert ok
        return one

    def scan(self, *believed: str) -> Scan:
        self.clock.ahead += RESCAN_NS
        return self.tier.scan(believed)

    def file(self, one: Record) -> Path:
        return self.path / f"{one.name}.duo"

    def files(self) -> list[str]:
        return sorted(path.name for path in self.path.iterdir())

    def n_bytes(self) -> int:
        return sum(path.stat().st_size for path in self.path.iterdir())


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)
