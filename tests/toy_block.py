"""A prediction block for the toy model, strict about its hidden rows and its KV cache."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from server.errors import BackendError
from server.llama.backend import Batch, Hidden, Logits
from server.sampling.noise import mix
from tests.fake_backend import FakeBackend, FakeModel, FakeVocabulary

PARTS = 8  # floats of a hidden row: a chain of 64 bits in parts of 8, which float16 holds exactly


def hidden_row(chain: int) -> Hidden:
    return np.array([chain >> (8 * i) & 0xFF for i in range(PARTS)], dtype=np.float32)


def chain_of(row: Hidden) -> int:
    return sum(int(part) << (8 * i) for i, part in enumerate(row))


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


@dataclass
class ToyRows:
    """Implements RowSource over the toy model: what its rows say is the chain up to each token."""

    target: FakeBackend
    width: int = PARTS
    readers: int = 0

    def begin_reading(self) -> None:
        self.readers += 1

    def take_rows(self, n: int) -> Hidden:
        assert self.readers == 1
        assert len(self.target.chains) == n
        return np.stack([hidden_row(chain) for chain in self.target.chains])

    def end_reading(self) -> None:
        self.readers -= 1


@dataclass
class ToyHead:
    """A head far from the toy model, whose guesses are right if the rows beside its tokens are."""

    model: FakeModel
    n_seqs: int = 4
    n_cells: int = 4096
    n_ctx: int = 1024
    n_batch: int = 32
    n_embd: int = PARTS
    can_trim: bool = True
    vocab: FakeVocabulary = field(default_factory=FakeVocabulary)
    n_rows: int = 0  # evaluated so far
    _ends: dict[int, int] = field(default_factory=dict[int, int])

    def fuse_rows(self, rows: Hidden) -> Hidden:
        return rows

    def evaluate(self, batch: Batch, hidden: Hidden, depth: int = 0) -> tuple[Logits, Hidden]:
        assert 0 < len(batch) == len(hidden) <= self.n_batch
        self.n_rows += len(batch)
        chains: list[int] = []
        for seq, position, token, row in zip(batch.seqs, batch.positions, batch.tokens, hidden, strict=True):
            assert position == self._ends.get(seq) or not self._ends.get(seq), "a gap in a sequence"
            self._ends[seq] = position + 1
            chains.append(mix(chain_of(row) + token + 1))
        wanted = [chain for chain, wanted in zip(chains, batch.wanted, strict=True) if wanted]
        if not wanted:
            return np.empty((0, self.vocab.size), np.float32), hidden[:0]
        return np.stack([self.model.logits(one) for one in wanted]), np.stack(
            [hidden_row(one) for one in wanted]
        )

    def trim(self, seq: int, length: int) -> None:
        self._ends[seq] = min(length, self.length(seq))

    def length(self, seq: int) -> int:
        return self._ends.get(seq, 0)

    def intact(self, seq: int, length: int) -> bool:
        return length <= self.length(seq)

    def copy(self, source: int, target: int, start: int, end: int) -> None:
        assert self.length(target) == start
        assert end <= self.length(source)
        self._ends[target] = end
