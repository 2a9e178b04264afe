"""The model as the engine sees it: ids in, rows of logits out. `llamacpp.py` is real, `fake.py` a toy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

Logits: TypeAlias = npt.NDArray[np.float32]


@dataclass(slots=True)
class Batch:
    """Rows of one decode as parallel lists: token id, position, sequence id, whether logits are wanted.

    shared: for rows that belong to several sequences (the stem of a tree), all of these by row index.
    fixed: the logits' bits shall depend on nothing but these rows and what they attend to, so that a backend
    may not add rows to be quicker. meanwhile: to be done once the decode is under way, by a backend that
    overlaps.
    """

    tokens: list[int] = field(default_factory=list[int])
    positions: list[int] = field(default_factory=list[int])
    seqs: list[int] = field(default_factory=list[int])
    wanted: list[bool] = field(default_factory=list[bool])
    shared: dict[int, tuple[int, ...]] = field(default_factory=dict[int, tuple[int, ...]])
    fixed: bool = False
    meanwhile: Callable[[], None] | None = None

    def __len__(self) -> int:
        return len(self.tokens)

    def extend(self, seq: int, position: int, tokens: Sequence[int], n_wanted: int) -> None:
        """Append consecutive tokens of one sequence from `position` on; logits for the last n_wanted."""
        n = len(tokens)
        self.tokens += tokens
        self.positions += range(position, position + n)
        self.seqs += [seq] * n
        self.wanted += [False] * (n - n_wanted) + [True] * n_wanted

    def append(self, seqs: Sequence[int], position: int, token: int, *, wanted: bool) -> None:
        """Append one row of these sequences, which hold the same tokens up to it."""
        if len(seqs) > 1:
            self.shared[len(self.tokens)] = tuple(seqs)
        self.tokens.append(token)
        self.positions.append(position)
        self.seqs.append(seqs[0])
        self.wanted.append(wanted)


class FillInMiddle(NamedTuple):
    """Control tokens that stand before the text's beginning, before its end, and before what is wanted."""

    prefix: int
    suffix: int
    middle: int


class Vocabulary(Protocol):
    """Token ids to text and back. Read-only: safe from any thread."""

    @property
    def size(self) -> int: ...
    @property
    def longest(self) -> int:
        """Bytes of the longest piece, control tokens written out: no text has fewer tokens than its bytes
        divided by this."""
        ...

    @property
    def bos(self) -> int | None: ...
    @property
    def eos(self) -> int | None: ...
    @property
    def eog(self) -> frozenset[int]:
        """Every id that ends a generation (end of turn, end of text …)."""
        ...

    @property
    def add_bos(self) -> bool:
        """Whether a prompt must begin with `bos`."""
        ...

    @property
    def fim(self) -> FillInMiddle | None:
        """None if the model was not trained to fill in the middle of a text."""
        ...

    def tokenize(self, text: str, *, special: bool) -> list[int]:
        """Ids of text, without BOS. `special`: parse control tokens written out in the text."""
        ...

    def piece(self, token: int, *, special: bool = False) -> bytes:
        """The bytes of one token, perhaps part of a character; b"" for control tokens unless `special`."""
        ...


class Backend(Protocol):
    """A loaded model with a KV cache shared by all sequences. Used by one thread only."""

    @property
    def name(self) -> str: ...
    @property
    def vocab(self) -> Vocabulary: ...
    @property
    def chat_template(self) -> str | None:
        """The model's own Jinja chat template, if it brings one."""
        ...

    @property
    def n_cells(self) -> int:
        """KV cells shared by all sequences: the sum of their lengths may not exceed it."""
        ...

    @property
    def n_ctx(self) -> int:
        """Most positions one sequence may have."""
        ...

    @property
    def n_seqs(self) -> int: ...
    @property
    def n_batch(self) -> int:
        """Most rows of one decode."""
        ...

    @property
    def can_trim(self) -> bool:
        """Whether the end of a sequence can be forgotten. False for recurrent and hybrid models: a sequence
        has a state then, beside its cells or instead of them, that is as long as itself."""
        ...

    @property
    def can_shift(self) -> bool:
        """Whether shift() works. Only where can_trim is true."""
        ...

    @property
    def overlaps(self) -> bool:
        """Whether a decode leaves the thread free for Batch.meanwhile, since a GPU does the work."""
        ...

    def decode(self, batch: Batch) -> Logits:
        """Evaluate the rows. Returns (number of wanted rows, vocab size), in batch order, a view that is
        valid until the next decode. Raises BackendError; what the KV cache holds of the batch's
        sequences is then unknown: trim them to 0."""
        ...

    def trim(self, seq: int, length: int) -> None:
        """Forget positions >= length of the sequence; 0 frees it. Raises BackendError if its state, where it
        has one, is longer than that, and does nothing."""
        ...

    def length(self, seq: int) -> int:
        """One more than the last position of the sequence in the KV cache, 0 if it is empty."""
        ...

    def intact(self, seq: int, length: int) -> bool:
        """Whether all that the token after the first `length` attends to is there. Where attention has a
        sliding window, cells that the sequence's end has passed may be given to others."""
        ...

    def save(self, seq: int) -> bytes:
        """What the KV cache holds of a sequence. Raises BackendError."""
        ...

    def load(self, seq: int, data: bytes) -> None:
        """Have an empty sequence hold what save() gave, of any sequence of the same model and types. Raises
        BackendError when it cannot be used; what the sequence holds is unknown then."""
        ...

    def copy(self, source: int, target: int, start: int, end: int) -> None:
        """Give the sequence `target`, which has `start` positions, those from start to end of `source`.
        Cheap: the cells are shared. A state goes along whatever the positions; it alone if start == end."""
        ...

    def shift(self, seq: int, start: int, end: int) -> None:
        """Forget positions from start to end and move the later ones down to start. These keep what they
        have seen of the forgotten ones, so they are not what evaluating the remaining tokens would give. No
        other sequence may share the later cells: they would move there too."""
        ...

    def close(self) -> None: ...
