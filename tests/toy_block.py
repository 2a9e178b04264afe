"""A prediction block for the toy model, strict about its hidden rows and its KV cache."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from server.errors import BackendError
from server.llama.backend import Batch, Hidden, Logits
from tests.fake_backend import FakeBackend, FakeModel

PARTS = 4  # floats of a hidden row: a chain of 64 bits in parts of 16, which float32 holds exactly


def hidden_row(chain: int) -> Hidden:
    return np.array([chain >> (16 * i) & 0xFFFF for i in range(PARTS)], dtype=np.float32)


def chain_of(row: Hidden) -> int:
    return sum(int(part) << (16 * i) for i, part in enumerate(row))


@dataclass
class ToyBlock:
    """Implements PredictionBlock over the cells of another toy model.

    What it evaluates has to be what the target evaluated. fails_after: decodes that succeed.
    """

    target: FakeBackend
    model: FakeModel
    source: str = "mtp"
    what: str = "the toy's block"
    n_embd: int = PARTS
    n_batch: int = 64
    n_depths: int = 0
    can_shift: bool = True
    fails_after: int | None = None
    n_decodes: int = 0
    cells: FakeBackend = field(init=False)
    _shifted: set[int] = field(default_factory=set[int])

    def __post_init__(self) -> None:
        target = self.target
        self.cells = FakeBackend(
            self.model, n_cells=target.n_cells, n_ctx=target.n_ctx, n_seqs=target.n_seqs, n_batch=self.n_batch
        )
        self.trim, self.save, self.load = self.cells.trim, self.cells.save, self.cells.load
        self.copy, self.close = self.cells.copy, self.cells.close

    def target_rows(self, n: int) -> Hidden:
        assert len(self.target.chains) == n
        return np.stack([hidden_row(chain) for chain in self.target.chains])

    def evaluate(self, batch: Batch, hidden: Hidden, depth: int = 0) -> tuple[Logits, Hidden]:
        if self.n_decodes == self.fails_after:
            raise BackendError("out of memory")
        self.n_decodes += 1
        assert not self.n_depths or depth < self.n_depths
        logits = self.cells.decode(batch)
        for seq, position, row in zip(batch.seqs, batch.positions, hidden, strict=True):
            known = self.cells.chain_at(seq, position - 1)
            if chain_of(row) not in (0, known):
                assert seq in self._shifted, f"another row before {position} of sequence {seq}"
                self._shifted.remove(seq)  # the row is of before the shift, which gave cells new chains
        chains = [chain for chain, wanted in zip(self.cells.chains, batch.wanted, strict=True) if wanted]
        return logits, np.stack([hidden_row(chain) for chain in chains]) if chains else hidden[:0]

    def shift(self, seq: int, start: int, end: int) -> None:
        self.cells.shift(seq, start, end)
        self._shifted.add(seq)
