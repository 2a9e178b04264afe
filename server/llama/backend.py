"""Interface between engine and model: token ids in, logits out. See `llamacpp.py`; tests have a fake."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

# llama.cpp rounds the cells of a context, and those that a decode attends to, up to a multiple of this
# (GGML_PAD in llama_context); each multiple has its own CUDA graph
CELLS_STEP = 256

Logits: TypeAlias = npt.NDArray[np.float32]
Hidden: TypeAlias = npt.NDArray[np.float32]
"""Hidden rows, (rows, n_embd): output of the last layer before the norm that precedes the head."""

PAD = 0
"""Token of padding rows; any token would do."""
PICTURE_IDS = 1 << 30
"""First id that is not a token: each id from here up to twice this value is a position of a picture."""

# list[int]() takes 0.3 µs, list() takes 0.04, and a batch is made for each guess
_ints: type[list[int]] = list
_bools: type[list[bool]] = list
_shares: type[dict[int, tuple[int, ...]]] = dict


@dataclass(slots=True)
class Batch:
    """Rows of one decode as parallel lists."""

    tokens: list[int] = field(default_factory=_ints)
    positions: list[int] = field(default_factory=_ints)
    seqs: list[int] = field(default_factory=_ints)  # sequence of each row, the first one if there are several
    wanted: list[bool] = field(default_factory=_bools)  # True for each row whose logits are wanted
    # by index of a row that belongs to several sequences (the stem of a tree): all its sequences
    shared: dict[int, tuple[int, ...]] = field(default_factory=_shares)
    meanwhile: Callable[[], None] | None = None  # a backend that overlaps calls it during the decode
    stable: bool = False  # True: no bit of the logits may depend on how busy the machine is

    def __len__(self) -> int:
        return len(self.tokens)

    def extend(self, seq: int, position: int, tokens: Sequence[int], n_wanted: int) -> None:
        """Append consecutive tokens of one sequence from `position` on; want logits of the last n_wanted."""
        n = len(tokens)
        self.tokens += tokens
        self.positions += range(position, position + n)
        self.seqs += [seq] * n
        self.wanted += [False] * (n - n_wanted) + [True] * n_wanted

    def append(self, seqs: Sequence[int], position: int, token: int, *, wanted: bool) -> None:
        """Append one row that belongs to all `seqs`, which hold the same tokens before `position`.

        wanted: True if the row's logits are needed.
        """
        if len(seqs) > 1:
            self.shared[len(self.tokens)] = tuple(seqs)
        self.tokens.append(token)
        self.positions.append(position)
        self.seqs.append(seqs[0])
        self.wanted.append(wanted)


@dataclass(frozen=True, slots=True, eq=False)
class Grid:
    """Positions of a picture's rows in a model with M-RoPE: four per row (time, row, column, unused)."""

    places: npt.NDArray[np.int32]  # (4, rows); relative to the picture's position where `moves` is 1
    moves: npt.NDArray[np.int32]  # (4, 1), 1 where the picture's position is added, else 0
    n_positions: int  # difference between the positions of the next token and of the first row

    def positions_from(self, first: int, positions: Sequence[int]) -> npt.NDArray[np.int32]:
        """Return positions, (4, n), of the n rows from `first` on; `positions`: of each row's picture."""
        return self.places[:, first : first + len(positions)] + self.moves * np.asarray(positions, np.int32)


@dataclass(frozen=True, slots=True, eq=False)
class Embeddings:
    """Consecutive rows of a picture, evaluated instead of tokens."""

    rows: Hidden  # (rows, width of the model's input), writable
    together: bool = False  # each row attends to all others, including later ones
    grid: Grid | None = None  # None: each row has one position, the next one
    first: int = 0  # index of the first row in the grid


class FillInMiddle(NamedTuple):
    """Ids of the control tokens for a text with a gap.

    `prefix` precedes the text before the gap, `suffix` the text after it, `middle` the text that fills it.
    If the model has them, `repository` precedes a repository's name, and `file` each of its files' names.
    """

    prefix: int
    suffix: int
    middle: int
    repository: int | None = None
    file: int | None = None


class Vocabulary(Protocol):
    """Converts token ids to text and back. Read-only: safe from any thread."""

    size: int
    longest: int  # bytes of the longest piece; a text of n bytes has at least n / longest tokens

    @property
    def bos(self) -> int | None: ...
    @property
    def eos(self) -> int | None: ...
    @property
    def fim(self) -> FillInMiddle | None: ...

    eog: frozenset[int]  # all ids that end a generation
    add_bos: bool  # a prompt must begin with bos

    @property
    def added(self) -> Mapping[str, int]:
        """Return the ids, by text, of the tokens that tokenize() finds before it splits the rest of a text.

        They are control tokens, whose piece() is empty unless `special`, and words added to the vocabulary.
        """
        ...

    def tokenize(self, text: str, *, special: bool) -> list[int]:
        """Return a text's ids without BOS; `special`: texts of control tokens become control tokens."""
        ...

    def piece(self, token: int, *, special: bool = False) -> bytes:
        """Return a token's bytes, perhaps part of a character; b"" for control tokens unless `special`."""
        ...


def blank_of(vocab: Vocabulary) -> int:
    """Return the token that replaces each position of a picture for drafters, which cannot read pictures."""
    return next(reversed(vocab.tokenize(" ", special=False)), PAD)


class Backend(Protocol):
    """A loaded model with a KV cache shared by all sequences. Used by one thread only."""

    name: str

    @property
    def vocab(self) -> Vocabulary: ...

    chat_template: str | None  # the model's Jinja template, if it has one
    n_cells: int  # KV cells: the maximum sum of the lengths of all sequences
    n_ctx: int  # maximum positions of a sequence
    n_seqs: int
    n_batch: int  # maximum rows of a decode, except for pictures that must be decoded at once
    can_trim: bool  # sequences can be shortened; False if a state covers all tokens of a sequence
    n_tail: int  # if not can_trim: number of a decode's last rows that can be removed, once per decode
    can_copy: bool  # copy() works; can_trim implies it
    can_share: bool  # a row may belong to several sequences
    can_shift: bool  # shift() works; implies can_trim
    overlaps: bool  # a GPU decodes, so the thread is free for Batch.meanwhile

    def decode(self, batch: Batch) -> Logits:
        """Evaluate the rows.

        Returns:
            Logits, (number of wanted rows, vocab size), in batch order: a view that is valid until the next
            decode.

        Raises:
            BackendError: The content of the batch's sequences is unknown afterwards: trim them to 0.
        """
        ...

    def start(self, batch: Batch) -> Callable[[], Logits]:
        """Begin a decode, and return a function that waits for its logits.

        Without `overlaps`, the decode ends before this returns. Call the function before the next decode.
        Raises BackendError as decode() does.
        """
        ...

    def trim(self, seq: int, length: int) -> None:
        """Remove positions >= length from the sequence; 0 frees it.

        Raises:
            BackendError: The sequence has a state and is longer than `length` by more than n_tail rows.
                Nothing is changed.
        """
        ...

    def length(self, seq: int) -> int:
        """Return one more than the last position of the sequence in the KV cache, 0 if it is empty."""
        ...

    def intact(self, seq: int, length: int) -> bool:
        """Return True if the first `length` tokens still have all cells to which the next token attends.

        In a model with a state and a sliding window, older cells may have been reused.
        """
        ...

    def save(self, seq: int) -> bytes:
        """Return the state of a sequence. Raises BackendError."""
        ...

    def load(self, seq: int, data: bytes) -> None:
        """Load what save() returned into an empty sequence.

        Raises:
            BackendError: The data are of another model or cache type. The sequence's content is then unknown.
        """
        ...

    def copy(self, source: int, target: int, start: int, end: int) -> None:
        """Append positions start to end of `source` to `target`, whose length is `start`.

        This is cheap if sequences share cells. A state is copied too, even if start == end.
        """
        ...

    def shift(self, seq: int, start: int, end: int) -> None:
        """Remove positions start to end and move later ones down to start.

        The moved cells still depend on the removed ones. No other sequence may share the moved cells, because
        they would be moved in that sequence too.
        """
        ...

    def close(self) -> None: ...


class ReadsRows(Backend, Protocol):
    """A Backend that also evaluates rows of embeddings."""

    def read_rows(self, batch: Batch, given: Embeddings) -> None:
        """Evaluate rows of embeddings, without logits.

        Args:
            batch: Sequences and positions of the rows; its tokens are ignored.
            given: The rows.

        Raises:
            BackendError: As decode() does.
        """
        ...


@dataclass(frozen=True, slots=True)
class RowsCard:
    """Description of a target's hidden rows that a lead can send, or that a head reads."""

    width: int  # length of a row: numbers that a layer reads or writes for a token
    layers: tuple[int, ...]  # layers whose inputs are sent or read; -1: the output of the last layer


SentRows: TypeAlias = npt.NDArray[np.float16]
"""Hidden rows as they are sent, (rows, width)."""


class RowGiver(Protocol):
    """A model that gives its recent hidden rows; implemented in `with_rows.py`."""

    def keep_rows(self, kinds: Collection[tuple[int, ...]]) -> None:
        """Keep rows from now on, only for these kinds of heads. A kind is the layers that a head reads."""
        ...

    def recent_rows(self, kind: tuple[int, ...], seq: int, start: int, end: int) -> tuple[int, SentRows]:
        """Return (position of the first row, rows): the latest kept rows of positions `start` to `end`."""
        ...


class OverModel:
    """Base of backends that wrap another backend: passes on its properties; subclasses add the methods."""

    vocab: Vocabulary
    name: str
    chat_template: str | None
    n_cells: int
    n_ctx: int
    n_seqs: int
    n_batch: int
    can_trim: bool
    n_tail: int
    can_copy: bool
    can_share: bool
    can_shift: bool
    overlaps: bool

    def __init__(self, backend: Backend) -> None:
        self.vocab, self.name, self.chat_template = backend.vocab, backend.name, backend.chat_template
        self.n_cells, self.n_ctx = backend.n_cells, backend.n_ctx
        self.n_seqs, self.n_batch = backend.n_seqs, backend.n_batch
        self.can_trim, self.n_tail, self.can_copy = backend.can_trim, backend.n_tail, backend.can_copy
        self.can_share, self.can_shift = backend.can_share, backend.can_shift
        self.overlaps = backend.overlaps
        self.length, self.intact = backend.length, backend.intact

    def start(self, batch: Batch) -> Callable[[], Logits]:
        raise NotImplementedError

    def decode(self, batch: Batch) -> Logits:
        finish = self.start(batch)
        if batch.meanwhile is not None and self.overlaps:
            batch.meanwhile()
        return finish()


class PredictionBlock(Protocol):
    """Layers in a model's file (MTP), or a head in its own file (EAGLE-3), that guess the next token.

    They guess from a token and the model's hidden row at the position before that token. They have their own
    KV cache, with the model's sequences and positions. Used by the model's thread only. Methods without a
    docstring are those of Backend.
    """

    source: str  # source under which its guesses are counted
    what: str  # name in messages
    n_embd: int  # width of a hidden row
    n_batch: int  # maximum rows of a decode
    n_depths: int  # maximum tokens that it guesses ahead; 0: any number
    can_shift: bool  # shift() works

    def target_rows(self, n: int) -> Hidden:
        """Return a copy of the hidden rows of the model's last decode of n rows. Raises BackendError."""
        ...

    def evaluate(self, batch: Batch, hidden: Hidden, depth: int = 0) -> tuple[Logits, Hidden]:
        """Evaluate rows.

        Args:
            batch: The rows.
            hidden: For each row, the model's hidden row at the position before it.
            depth: Number of guesses between the model's text and these rows.

        Returns:
            Logits and hidden rows of the wanted rows, views that are valid until the next call.

        Raises:
            BackendError: The content of the batch's sequences in the block's KV cache is unknown afterwards.
        """
        ...

    def trim(self, seq: int, length: int) -> None: ...
    def save(self, seq: int) -> bytes: ...
    def load(self, seq: int, data: bytes) -> None: ...
    def copy(self, source: int, target: int, start: int, end: int) -> None: ...
    def shift(self, seq: int, start: int, end: int) -> None: ...
    def close(self) -> None: ...
