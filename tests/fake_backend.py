"""A toy model and vocabulary without weights: deterministic, quick, and strict about the KV cache.

Logits are a function of all cells of the sequence, so an engine that trims wrongly or mixes two sequences
gets another text, or an error.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from server.errors import BackendError
from server.llama.backend import PICTURE_IDS, Batch, FillInMiddle, Logits
from server.sampling.noise import lower_noise, mix

IM_START, IM_END, END_OF_TEXT = 256, 257, 258
_SPECIALS = {IM_START: b"<|im_start|>", IM_END: b"<|im_end|>", END_OF_TEXT: b"<|endoftext|>"}
_IDS = {piece: token for token, piece in _SPECIALS.items()}
_MARKS = re.compile(b"(" + b"|".join(map(re.escape, _IDS)) + b")")
_CHARACTERS = np.frombuffer(b" abcdefghijklmnopqrstuvwxyz.,\n", dtype=np.uint8).astype(np.int64)


class FakeVocabulary:
    """A Vocabulary: ids 0 to 255 are bytes; three control tokens follow."""

    size = 259
    longest = len("<|endoftext|>")
    bos = None
    eos = IM_END
    eog = frozenset({IM_END, END_OF_TEXT})
    add_bos = False
    fim: FillInMiddle | None = None
    added: Mapping[str, int] = MappingProxyType({piece.decode(): token for piece, token in _IDS.items()})

    def tokenize(self, text: str, *, special: bool) -> list[int]:
        tokens: list[int] = []
        for i, piece in enumerate(_MARKS.split(text.encode()) if special else [text.encode()]):
            tokens += [_IDS[piece]] if i % 2 else piece
        return tokens

    def piece(self, token: int, *, special: bool = False) -> bytes:
        if token < 256:
            return bytes([token])
        return _SPECIALS[token] if special else b""


class Spacing(FakeVocabulary):
    """A vocabulary that adds a space before a text, as SentencePiece does."""

    def tokenize(self, text: str, *, special: bool) -> list[int]:
        return super().tokenize(f" {text}", special=special)


@dataclass(frozen=True, slots=True)
class FakeModel:
    """The toy's predictions.

    error: share of contexts where it disagrees with the model of its seed; sharpness: scale of the logits;
    eog_rate: share of contexts that end the text.
    """

    seed: int = 1
    error: float = 0.0
    error_seed: int = 0
    sharpness: float = 3.0
    eog_rate: float = 0.004

    def logits(self, chain: int) -> Logits:
        """Return logits of shape (vocabulary size,) for the context with this chain hash."""
        key = mix(chain ^ mix(self.seed))
        row = np.full(FakeVocabulary.size, -60.0, dtype=np.float32)
        if _share(mix(key ^ 1)) < self.eog_rate:
            row[IM_END] = 30.0
        if self.error and _share(mix(key ^ mix(self.error_seed + 2))) < self.error:
            key = mix(key ^ mix(self.error_seed + 3))
        row[_CHARACTERS] = self.sharpness * lower_noise(key, 0, _CHARACTERS)
        return row


def _share(value: int) -> float:
    return value / (1 << 64)


@dataclass(frozen=True, slots=True, eq=False)
class _Cell:
    """A cell of the KV cache: a position of all sequences that share it.

    It is equal only to itself.
    """

    chain: int


class _State(NamedTuple):
    """A recurrent state of `length` tokens with this chain hash."""

    length: int
    chain: int


NO_STATE = _State(0, 0)


@dataclass(slots=True)
class FakeBackend:
    """A Backend over a toy model.

    step_s, row_s: seconds that it sleeps per decode and per row. Without can_trim it is a hybrid model: a
    sequence has a state beside its cells, of equal tokens. n_tail: as in Backend, where llama.cpp also takes
    states that it never wrote. Without can_copy it is like a model with compressed cells, where llama.cpp
    aborts. sees: it takes positions of pictures for tokens.
    """

    model: FakeModel = field(default_factory=FakeModel)
    n_cells: int = 4096
    n_ctx: int = 1024
    n_seqs: int = 16
    n_batch: int = 64
    step_s: float = 0.0
    row_s: float = 0.0
    can_trim: bool = True
    n_tail: int = 0
    can_copy: bool = True
    can_share: bool = True
    can_shift: bool = True
    overlaps: bool = False
    sees: bool = False
    name: str = "fake"
    chat_template: str | None = None
    vocab: FakeVocabulary = field(default_factory=FakeVocabulary)
    widths: list[int] = field(default_factory=list[int])
    closed: bool = False
    chains: list[int] = field(default_factory=list[int])  # after each row of the last decode
    _chains: dict[int, list[_Cell]] = field(default_factory=dict[int, "list[_Cell]"])
    _states: dict[int, _State] = field(default_factory=dict[int, "_State"])
    _tails: dict[int, int] = field(default_factory=dict[int, int])  # rows to trim a sequence by

    def decode(self, batch: Batch) -> Logits:
        n_counted = sum(token < PICTURE_IDS for token in batch.tokens)
        if not len(batch) or n_counted > self.n_batch:
            raise BackendError(f"a batch of {n_counted} rows, at most {self.n_batch}")
        assert self.can_share or not batch.shared, "llama.cpp refuses them"
        self.widths.append(len(batch))
        rows: list[Logits] = []
        self.chains = []
        for seq, n_rows in Counter(batch.seqs).items():
            self._tails[seq] = min(self.n_tail, n_rows - 1)
        for row, (token, position, wanted) in enumerate(
            zip(batch.tokens, batch.positions, batch.wanted, strict=True)
        ):
            chain = self._append(batch.shared.get(row, (batch.seqs[row],)), position, token)
            self.chains.append(chain)
            if wanted:
                rows.append(self.model.logits(chain))
        if batch.meanwhile is not None and self.overlaps:
            batch.meanwhile()
        if self.step_s or self.row_s:
            time.sleep(self.step_s + self.row_s * len(batch))
        return np.stack(rows) if rows else np.empty((0, self.vocab.size), dtype=np.float32)

    def start(self, batch: Batch) -> Callable[[], Logits]:
        logits = self.decode(batch)
        return lambda: logits

    def trim(self, seq: int, length: int) -> None:
        n_held = self._states.get(seq, NO_STATE).length
        if 0 < length < n_held:
            if n_held - length > self._tails.get(seq, 0):
                raise BackendError("this model's sequences cannot be trimmed")
            self._tails[seq] = 0
            self._states[seq] = _State(length, self.chain_at(seq, length - 1))
        if not length:
            self._states.pop(seq, None)
        del self._chains.get(seq, [])[length:]

    def intact(self, seq: int, length: int) -> bool:
        return length <= self.length(seq)

    def save(self, seq: int) -> bytes:
        if not self.can_trim:
            self._check_state(seq)
        return b"".join(cell.chain.to_bytes(8, "little") for cell in self._chains.get(seq, []))

    def load(self, seq: int, data: bytes) -> None:
        if self._chains.get(seq) or len(data) % 8:
            raise BackendError(f"cannot load {len(data)} bytes into sequence {seq}")
        chains = [int.from_bytes(data[i : i + 8], "little") for i in range(0, len(data), 8)]
        if self.n_used + len(chains) > self.n_cells:
            raise BackendError("the KV cache is full")
        self._chains[seq] = [_Cell(chain) for chain in chains]
        if not self.can_trim:
            self._states[seq] = _State(len(chains), chains[-1])
            self._tails[seq] = 0

    def copy(self, source: int, target: int, start: int, end: int) -> None:
        assert self.can_copy, "llama.cpp ends the process"
        if not 0 <= target < self.n_seqs:
            raise BackendError(f"sequence {target} out of range")
        if not self.can_trim:
            self._states[target] = self._states.get(source, NO_STATE)
            self._tails[target] = 0
            if start == end:
                return
        cells, own = self._chains.get(source, []), self._chains.setdefault(target, [])
        if len(own) != start or len(cells) < end or own != cells[:start]:
            raise BackendError(f"cannot copy {start} to {end} of sequence {source} to {target}")
        own += cells[start:end] if self.can_share else [_Cell(cell.chain) for cell in cells[start:end]]

    def shift(self, seq: int, start: int, end: int) -> None:
        """Move the cells, each with a new chain: a function of its own and of the two cells that meet.

        So the text differs from that of any other shift, and from that of the remaining tokens.
        """
        cells = self._chains.get(seq, [])
        if not (self.can_shift and self.can_trim and 0 <= start < end <= len(cells)):
            raise BackendError(f"cannot shift {start} to {end} of a sequence of {len(cells)}")
        moved = {id(cell) for cell in cells[end:]}
        for other, held in self._chains.items():
            if other != seq and any(id(cell) in moved for cell in held):
                raise BackendError(f"sequence {other} shares cells that {seq} would move")
        seam = mix((cells[start - 1].chain if start else 0) ^ mix(cells[end - 1].chain))
        cells[start:] = [_Cell(mix(cell.chain ^ seam)) for cell in cells[end:]]

    def length(self, seq: int) -> int:
        """Return the number of positions of the sequence."""
        return len(self._chains.get(seq, []))

    def chain_at(self, seq: int, position: int) -> int:
        """Return the chain hash of the tokens up to this position of the sequence."""
        return self._chains[seq][position].chain if position >= 0 else 0

    def close(self) -> None:
        self.closed = True

    @property
    def n_used(self) -> int:
        """Cells in use, shared ones counted once."""
        return len({id(cell) for cells in self._chains.values() for cell in cells})

    def _append(self, seqs: tuple[int, ...], position: int, token: int) -> int:
        """Add a cell to all these sequences and return its chain hash."""
        known = 0 <= token < self.vocab.size or (self.sees and PICTURE_IDS <= token < 2 * PICTURE_IDS)
        if not all(0 <= seq < self.n_seqs for seq in seqs) or not known:
            raise BackendError(f"sequences {seqs} or token {token} out of range")
        held = [self._chains.setdefault(seq, []) for seq in seqs]
        if not self.can_trim:
            self._check_state(seqs[0])
            if seqs[1:]:
                raise BackendError("a row of several sequences, which have a state each")
        before = held[0][-1].chain if held[0] else 0
        if position != len(held[0]) or any(cells != held[0] for cells in held[1:]) or position >= self.n_ctx:
            raise BackendError(f"position {position} in sequences {seqs} of {[len(c) for c in held]}")
        if sum(map(len, self._chains.values())) >= self.n_cells and self.n_used >= self.n_cells:
            raise BackendError("the KV cache is full")
        cell = _Cell(mix(before + token + 1))
        for cells in held:
            cells.append(cell)
        if not self.can_trim:
            self._states[seqs[0]] = _State(position + 1, cell.chain)
        return cell.chain

    def _check_state(self, seq: int) -> None:
        """Raise BackendError unless the sequence has the state of its last cell."""
        cells = self._chains.get(seq, [])
        if self._states.get(seq, NO_STATE) != _State(len(cells), cells[-1].chain if cells else 0):
            raise BackendError(f"sequence {seq} has cells and a state of different tokens")
