"""A model with its prediction block: each change of a model's sequence is also applied to the block's.

The block evaluates the model's tokens, each with the model's hidden row of the position before. Tokens wait
until a guess is needed, and are then evaluated in the batch of that guess. If many wait, they are evaluated
during the model's next decode. So guess() needs only the last committed token, even after copies, saves,
loads or shifts.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, cast

import numpy as np

from server.errors import BackendError
from server.llama.backend import (
    Backend,
    Batch,
    Embeddings,
    Hidden,
    Logits,
    OverModel,
    PredictionBlock,
    ReadsRows,
    blank_of,
)

logger = logging.getLogger("duo.llama")

# Maximum rows of a sequence that wait for a guess: 64 rows of 4096 floats are a megabyte. Half or twice: 32
# or 128 rows are evaluated at once.
MOST_WAITING = 64
# If a copied sequence lacks at most this number of rows, the block evaluates them again instead of copying
# cells. Half or twice: shadows of trees copy cells every 8th or 32nd token, instead of every 16th.
MOST_LAG = 16
_SIZE = struct.Struct("<Q")


@dataclass(slots=True)
class _Waiting:
    """Tokens of a sequence that the block has not evaluated."""

    n_true: int = 0  # number of positions that the block holds, without guesses
    n_held: int = 0  # number of positions that the block holds, including guesses
    last: int = -1  # token at position n_true - 1, which the model may not have evaluated yet
    first: int = 0  # position of the first token in `tokens`
    tokens: list[int] = field(default_factory=list[int])  # the model's; the first one is -1 if unknown
    rows: list[Hidden] = field(default_factory=list[Hidden])  # the model's hidden rows of `tokens`

    @property
    def end(self) -> int:
        return self.first + len(self.tokens)

    def add(self, position: int, token: int, row: Hidden) -> None:
        """Add a token that the model has evaluated at this position."""
        self.cut(position)
        if position < self.n_true and (position + 1 < self.n_true or token != self.last):
            self.n_true = position
        if self.end != position:
            self.first, self.tokens, self.rows = position, [], []
        self.tokens.append(token)
        self.rows.append(row)

    def cut(self, length: int) -> None:
        """Remove positions >= length, which the model has removed."""
        self.first = min(self.first, length)
        n = length - self.first
        del self.tokens[n:], self.rows[n:]

    def forget(self) -> None:
        """Drop hidden rows of evaluated tokens, except the latest MOST_LAG + 1.

        A copy of the sequence may need the latest rows.
        """
        n = min(self.n_true, self.end) - 1 - MOST_LAG - self.first
        if n > MOST_LAG:
            self.first += n
            del self.tokens[:n], self.rows[:n]


class Path(NamedTuple):
    """The end of a sequence (including guesses), from which the block guesses the next token."""

    seq: int
    token: int  # last committed token, or last guess
    hidden: Hidden | None  # the block's hidden row if `token` is a guess, None if it is committed


class WithBlock(OverModel):
    """A Backend over a model and its prediction block. Closes neither."""

    def __init__(self, backend: Backend, block: PredictionBlock) -> None:
        super().__init__(backend)
        self._backend = backend
        self.block = block
        self._nothing = np.zeros(block.n_embd, dtype=np.float32)  # the row before the first position
        self._blank = blank_of(backend.vocab)
        self._waiting = [_Waiting() for _ in range(backend.n_seqs)]
        self._late: set[int] = set()  # sequences that the block evaluates during the model's next decode
        self.failed = False
        self.n_unknown = 0  # positions that the block evaluated without the row before them

    def start(self, batch: Batch) -> Callable[[], Logits]:
        started = self._backend.start(batch)
        self._catch_up_late()

        def finish() -> Logits:
            logits = started()
            if not self.failed:
                self._take_in(batch)
            return logits

        return finish

    def read_rows(self, batch: Batch, given: Embeddings) -> None:
        """Evaluate rows of a picture, as in ReadsRows.

        The block reads a blank token instead of each row, with the model's hidden rows.
        """
        cast(ReadsRows, self._backend).read_rows(batch, given)
        self._catch_up_late()
        if not self.failed:
            self._take_in(replace(batch, tokens=[self._blank] * len(batch)))

    def n_late(self, seq: int) -> int:
        """Return the number of positions that the model has evaluated and the block has not."""
        waiting = self._waiting[seq]
        return waiting.end - waiting.n_true

    def read(self, seq: int) -> None:
        """Make the block evaluate its missing positions of a sequence during the model's next decode."""
        self._late.add(seq)

    def guess(self, paths: Sequence[Path], depth: int) -> tuple[Logits, Hidden]:
        """Return logits of the token after each path, and the block's hidden rows, valid until the next call.

        Args:
            paths: The ends of sequences to guess from.
            depth: Number of tokens already guessed in this step.

        Raises:
            BackendError: The block failed, and will not be used again.
        """
        batch = Batch()
        hidden: list[Hidden] = []
        seqs = [path.seq for path in paths if path.hidden is None]
        if seqs and sum(max(0, self.n_late(seq)) for seq in seqs) + len(paths) > self.block.n_batch:
            self._catch_up(seqs)
        for path in paths:
            waiting = self._waiting[path.seq]
            if path.hidden is None:
                hidden += self._add_waiting(batch, path.seq, waiting.end)
                hidden.append(self._row_before(waiting, waiting.end))
                batch.append((path.seq,), waiting.end, path.token, wanted=True)
                self._late.discard(path.seq)
                waiting.n_held = waiting.n_true = waiting.end + 1
                waiting.last = path.token
                waiting.forget()
            else:
                hidden.append(path.hidden)
                batch.append((path.seq,), waiting.n_held, path.token, wanted=True)
                waiting.n_held += 1
        return self._evaluate_block(batch, hidden, depth)

    def trim(self, seq: int, length: int) -> None:
        self._backend.trim(seq, length)
        waiting = self._waiting[seq]
        waiting.cut(length)
        waiting.n_true = min(waiting.n_true, length)
        if not length or waiting.n_held - waiting.n_true > MOST_WAITING:
            self._drop_guesses(seq)

    def copy(self, source: int, target: int, start: int, end: int) -> None:
        self._backend.copy(source, target, start, end)
        theirs, own = self._waiting[source], self._waiting[target]
        own.cut(start)
        own.n_true = min(own.n_true, start)
        if own.end < theirs.first or not own.tokens:
            own.first, own.tokens, own.rows = min(theirs.first, end), [], []
        added = slice(own.end - theirs.first, max(0, end - theirs.first))
        own.tokens += theirs.tokens[added]
        own.rows += theirs.rows[added]
        n = min(theirs.n_true, end)
        if n - own.n_true > MOST_LAG or own.n_true <= min(own.first, n - 1):
            self._drop_guesses(target)
            self.block.copy(source, target, own.n_true, n)
            own.n_true = own.n_held = n
            own.last = theirs.last if n == theirs.n_true else -1
        own.forget()

    def shift(self, seq: int, start: int, end: int) -> None:
        """Remove positions start to end, and move later ones down, in the model and in the block.

        A block that cannot shift forgets the sequence. The model's sequence is shifted even then, because the
        text must not depend on the block.
        """
        self._make_agree(seq)
        self._backend.shift(seq, start, end)
        waiting = self._waiting[seq]
        if self.block.can_shift:
            self.block.shift(seq, start, end)
        else:
            self.block.trim(seq, 0)
        waiting.n_true = waiting.n_held = waiting.n_true - (end - start)
        waiting.first -= end - start

    def save(self, seq: int) -> bytes:
        """Return the model's state, the block's state, and the hidden row of the last position."""
        self._make_agree(seq)
        waiting = self._waiting[seq]
        state, row = self._backend.save(seq), self._row_before(waiting, waiting.n_true)
        return b"".join((_SIZE.pack(len(state)), state, row.tobytes(), self.block.save(seq)))

    def load(self, seq: int, data: bytes) -> None:
        if len(data) < _SIZE.size:
            raise BackendError("it does not fit this model")
        at = _SIZE.size + _SIZE.unpack_from(data)[0]
        after = at + self._nothing.nbytes
        self._backend.load(seq, data[_SIZE.size : at])
        row = np.frombuffer(data[at:after], dtype=np.float32)
        if len(row) != len(self._nothing):
            raise BackendError("it does not fit this model's prediction block")
        self.block.load(seq, data[after:])
        n = self._backend.length(seq)
        self._waiting[seq] = _Waiting(n, n, -1, n - 1, [-1], [row])

    def close(self) -> None:
        """Do nothing: the owner of model and block closes them."""

    # -- rows ----------------------------------------

    def _catch_up_late(self) -> None:
        if self._late:
            late, self._late = self._late, set()
            self._catch_up(late)

    def _take_in(self, batch: Batch) -> None:
        try:
            rows = self.block.target_rows(len(batch))
        except BackendError as error:
            self.failed = True
            logger.warning("%s failed and drafts no more: %s", self.block.what, error.message)
            return
        for i, (seq, position, token) in enumerate(
            zip(batch.seqs, batch.positions, batch.tokens, strict=True)
        ):
            for each in batch.shared.get(i, (seq,)):
                self._waiting[each].add(position, token, rows[i])
        self._late = {seq for seq in set(batch.seqs) if self.n_late(seq) > MOST_WAITING}

    def _make_agree(self, seq: int) -> None:
        """Make the block's sequence hold exactly the positions that the model's sequence `seq` holds."""
        self._catch_up([seq])
        waiting = self._waiting[seq]
        waiting.n_true = min(waiting.n_true, waiting.end)
        self._drop_guesses(seq)

    def _catch_up(self, seqs: Iterable[int]) -> None:
        """Make the block evaluate, in these sequences, the positions that only the model has evaluated."""
        try:
            for seq in seqs:
                waiting = self._waiting[seq]
                while self.n_late(seq) > 0 and not self.failed:
                    batch = Batch()
                    end = min(waiting.end, waiting.n_true + self.block.n_batch)
                    hidden = self._add_waiting(batch, seq, end)
                    waiting.n_true = waiting.n_held = end
                    waiting.last = waiting.tokens[end - 1 - waiting.first]
                    self._evaluate_block(batch, hidden, 0)
                waiting.forget()
        except BackendError as error:
            logger.warning("%s failed and drafts no more: %s", self.block.what, error.message)

    def _add_waiting(self, batch: Batch, seq: int, end: int) -> list[Hidden]:
        """Add a row to the batch for each token before `end` that the block has not evaluated.

        Returns, for each added row, the model's hidden row at the position before.
        """
        waiting = self._waiting[seq]
        start = waiting.n_true = min(waiting.n_true, end)
        self._drop_guesses(seq)
        if start < waiting.first:
            self.failed = True
            raise BackendError(f"positions {start} to {waiting.first} of sequence {seq} are not known")
        batch.extend(seq, start, waiting.tokens[start - waiting.first : end - waiting.first], 0)
        return [self._row_before(waiting, position) for position in range(start, end)]

    def _row_before(self, waiting: _Waiting, position: int) -> Hidden:
        at = position - 1 - waiting.first
        if 0 <= at < len(waiting.rows):
            return waiting.rows[at]
        self.n_unknown += position > 0
        return self._nothing

    def _drop_guesses(self, seq: int) -> None:
        """Remove guessed tokens of the sequence from the block."""
        waiting = self._waiting[seq]
        if waiting.n_held > waiting.n_true:
            self.block.trim(seq, waiting.n_true)
        waiting.n_held = waiting.n_true

    def _evaluate_block(self, batch: Batch, hidden: Sequence[Hidden], depth: int) -> tuple[Logits, Hidden]:
        try:
            rows = (
                hidden[0][None].copy() if len(hidden) == 1 else np.stack(hidden)
            )  # np.stack takes 6 µs more
            return self.block.evaluate(batch, rows, depth)
        except BackendError:
            self.failed = True
            raise
