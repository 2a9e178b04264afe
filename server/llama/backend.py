"""The model as the engine sees it: ids in, logits out. `llamacpp.py` is real; the tests have a toy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

Logits: TypeAlias = npt.NDArray[np.float32]
Hidden: TypeAlias = npt.NDArray[np.float32]
"""(rows, n_embd): what a model's last layer says of each row, before the norm that precedes its head."""

# list[int]() takes 0.3 µs, list() takes 0.04, and a batch is made for each guess
_ints: type[list[int]] = list
_bools: type[list[bool]] = list
_shares: type[dict[int, tuple[int, ...]]] = dict


@dataclass(slots=True)
class Batch:
    """Rows of one decode as parallel lists: token id, position, sequence id, whether logits are wanted.

    shared: for rows of several sequences (the stem of a tree), all of these by row index. meanwhile: called
    once the decode is under way, by a backend that overlaps. stable: no bit of the logits may depend on how
    busy the machine is.
    """

    tokens: list[int] = field(default_factory=_ints)
    positions: list[int] = field(default_factory=_ints)
    seqs: list[int] = field(default_factory=_ints)
    wanted: list[bool] = field(default_factory=_bools)
    shared: dict[int, tuple[int, ...]] = field(default_factory=_shares)
    meanwhile: Callable[[], None] | None = None
    stable: bool = False

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
    """Control tokens before the text's beginning, before its end, and before the part to generate.

    Where the model knows these, also before the name of a repository, and of each of its files.
    """

    prefix: int
    suffix: int
    middle: int
    repository: int | None = None
    file: int | None = None


class Vocabulary(Protocol):
    """Token ids to text and back. Read-only: safe from any thread.

    longest: bytes of the longest piece, control tokens written out: no text has fewer tokens than its bytes
    divided by this. eog: every id that ends a generation. add_bos: a prompt must begin with bos. fim: None if
    the model cannot fill in the middle of a text.
    """

    size: int
    longest: int

    @property
    def bos(self) -> int | None: ...
    @property
    def eos(self) -> int | None: ...
    @property
    def fim(self) -> FillInMiddle | None: ...

    eog: frozenset[int]
    add_bos: bool

    @property
    def added(self) -> Mapping[str, int]:
        """Return ids by text of the tokens that tokenize() finds before it splits the rest of a text.

        They are control tokens, which have no piece unless it is special, and words added to the vocabulary.
        """
        ...

    def tokenize(self, text: str, *, special: bool) -> list[int]:
        """Ids of text, without BOS. `special`: parse control tokens written out in the text."""
        ...

    def piece(self, token: int, *, special: bool = False) -> bytes:
        """Return the bytes of a token, perhaps part of a character; none for control tokens but `special`."""
        ...


class Backend(Protocol):
    """A loaded model with a KV cache shared by all sequences. Used by one thread only."""

    name: str

    @property
    def vocab(self) -> Vocabulary: ...

    chat_template: str | None  # the model's Jinja template, if it has one
    n_cells: int  # KV cells: the lengths of all sequences add up to at most that
    n_ctx: int  # most positions of a sequence
    n_seqs: int
    n_batch: int  # most rows of a decode
    can_trim: bool  # the end of a sequence can be forgotten; False where it has a state of all its tokens
    n_tail: int  # if not can_trim, how many of the last rows of a decode can be trimmed, once
    can_copy: bool  # copy() works; can_trim implies it
    can_share: bool  # a row may belong to several sequences
    can_shift: bool  # shift() works; implies can_trim
    overlaps: bool  # a GPU decodes, so that the thread is free for Batch.meanwhile

    def decode(self, batch: Batch) -> Logits:
        """Evaluate the rows.

        Returns:
            Logits, (number of wanted rows, vocab size), in batch order, a view that is valid until the next
            decode.

        Raises:
            BackendError: What the KV cache holds of the batch's sequences is then unknown: trim them to 0.
        """
        ...

    def start(self, batch: Batch) -> Callable[[], Logits]:
        """Begin what decode() does, where `overlaps`. The result waits for the logits.

        It must be called before the next decode. Raises BackendError, as decode() does.
        """
        ...

    def trim(self, seq: int, length: int) -> None:
        """Forget positions >= length of the sequence; 0 frees it.

        Raises:
            BackendError: It has a state of more tokens, beyond n_tail; nothing is changed.
        """
        ...

    def length(self, seq: int) -> int:
        """One more than the last position of the sequence in the KV cache, 0 if it is empty."""
        ...

    def intact(self, seq: int, length: int) -> bool:
        """Return whether the cells that the token after the first `length` attends to are there.

        With a state and a sliding window, older ones may have been given to others.
        """
        ...

    def save(self, seq: int) -> bytes:
        """Return the state of a sequence. Raises BackendError."""
        ...

    def load(self, seq: int, data: bytes) -> None:
        """Load what save() gave into an empty sequence.

        Raises:
            BackendError: It is of another model or other cache types; what the sequence holds is unknown
                then.
        """
        ...

    def copy(self, source: int, target: int, start: int, end: int) -> None:
        """Append positions start to end of `source` to `target`, which has `start` positions.

        Cheap where cells are shared. A state is copied too, even if start == end.
        """
        ...

    def shift(self, seq: int, start: int, end: int) -> None:
        """Forget positions from start to end and move the later ones down to start.

        What these saw of the forgotten ones stays in them. No other sequence may share the later cells: they
        would move there too.
        """
        ...

    def close(self) -> None: ...


class PredictionBlock(Protocol):
    """Layers in a model's file (MTP), or a head in a file of its own (EAGLE-3), that guess a token further.

    They guess from the token at a position and a hidden row of the position before it. They have a KV cache
    of their own, with the sequences and positions of the model's. Used by its thread only; the other methods
    are those of Backend.
    """

    source: str  # the name of its guesses
    what: str  # itself, as messages name it
    n_embd: int  # width of a hidden row
    n_batch: int  # most rows of a decode
    n_depths: int  # most tokens that it guesses ahead, 0: any number
    can_shift: bool  # shift() works

    def target_rows(self, n: int) -> Hidden:
        """Return a copy of the hidden rows of the model's last decode, of n rows. Raises BackendError."""
        ...

    def evaluate(self, batch: Batch, hidden: Hidden, depth: int = 0) -> tuple[Logits, Hidden]:
        """Evaluate rows.

        Args:
            batch: The rows.
            hidden: hidden[i] is of the position before that of row i.
            depth: Tokens that were guessed before.

        Returns:
            Logits and hidden rows of the wanted rows, views that are valid until the next call.

        Raises:
            BackendError: What its KV cache holds of these sequences is then unknown.
        """
        ...

    def trim(self, seq: int, length: int) -> None: ...
    def save(self, seq: int) -> bytes: ...
    def load(self, seq: int, data: bytes) -> None: ...
    def copy(self, source: int, target: int, start: int, end: int) -> None: ...
    def shift(self, seq: int, start: int, end: int) -> None: ...
    def close(self) -> None: ...
