"""Draft with a head of the target, from hidden rows (hidden states) that the lead sends with each commit."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from drafters.drafter import Drafter
from server.drafting.branch import NO_SEQ
from server.drafting.draft_cache import DraftCache
from server.drafting.draft_session import DraftSession
from server.drafting.draft_slots import Cells
from server.drafting.expansion import PATH_MIN, TD_WEIGHT
from server.errors import BackendError, StartupError
from server.estimators import Smoothed
from server.llama.backend import Batch, Hidden, Logits, RowsCard, Vocabulary
from server.llama.eagle3 import LlamaHead
from server.llama.llamacpp import LlamaBackend
from server.llama.mtp import BlockFile
from server.llama.options import LlamaOptions
from server.llama.target_rows import OUTPUT
from server.llama.tensors import EAGLE3, architecture, is_block
from server.llama.with_block import MOST_WAITING
from server.sampling.draft_token import DraftGuess, guess
from server.speculation.wire.messages import Rows
from server.speculation.wire.presence import mismatch, vocabulary_card


class DistantHead(Cells, Protocol):
    """A PredictionBlock in another process than its target."""

    n_ctx: int  # maximum positions of a sequence
    n_batch: int  # maximum rows of a decode
    n_embd: int  # length of the rows that evaluate() reads

    @property
    def vocab(self) -> Vocabulary: ...

    def fuse_rows(self, rows: Hidden) -> Hidden:
        """Return hidden rows of the target in the form that evaluate() takes. Raises BackendError."""
        ...

    def evaluate(self, batch: Batch, hidden: Hidden, depth: int = 0) -> tuple[Logits, Hidden]:
        """See PredictionBlock.evaluate()."""
        ...


def open_head(
    path: Path, model: LlamaBackend, options: LlamaOptions
) -> tuple[LlamaHead | BlockFile, RowsCard]:
    """Load an EAGLE-3 head or a prediction block; return it with a description of the rows that it reads.

    Args:
        path: The head's file.
        model: The target, or another model with the same vocabulary. A head that has no embeddings uses
            those of this model.
        options: Options of the head's context.

    Raises:
        StartupError: The file cannot be used.
    """
    if architecture(path) == EAGLE3:
        head = LlamaHead(model, path, options)
        card = RowsCard(head.target_width, tuple(head.layers))
    elif is_block(path):
        head = BlockFile(model, path, options=options)
        card = RowsCard(head.n_embd, (OUTPUT,))
    else:
        raise StartupError(
            f"{path} is neither an EAGLE-3 head nor a prediction block: give --model for others"
        )
    reason = mismatch(vocabulary_card(model.vocab), vocabulary_card(head.vocab))
    if reason is None and head.n_depths:
        reason = "each of its blocks guesses at one depth, which only the lead can use"
    if reason:
        head.close()
        raise StartupError(f"{path} does not fit --vocab-from: {reason}")
    return head, card


@dataclass(slots=True)
class _HeadPath:
    """The target's hidden rows that have arrived for a session, and the state of the head's path."""

    n_opened: int = 0  # number of the session's Open messages before the first row
    last: DraftGuess | None = None  # the path's last guess
    first: int = 0  # position of the first row
    rows: list[npt.NDArray[np.float16]] = field(default_factory=list[npt.NDArray[np.float16]])
    n_true: int = 0  # number of leading tokens whose KV cells were computed from rows of the target
    hidden: Hidden | None = None  # the head's own hidden row, which it reads to evaluate `last`

    @property
    def end(self) -> int:
        return self.first + len(self.rows)

    def add_rows(self, rows: Rows) -> None:
        """Add rows; if there is a gap before them, drop all earlier rows."""
        new = np.frombuffer(rows.data, dtype="<f2").reshape(-1, rows.width)
        if not self.first <= rows.base <= self.end:
            self.first, self.rows = rows.base, []
        self.rows[rows.base - self.first :] = list(new)

    def forget_rows(self, length: int) -> None:
        """Drop the rows before position `length`, which are no longer needed."""
        del self.rows[: max(0, length - self.first)]
        self.first = max(self.first, length)


class HeadDrafter(Drafter):
    """A Drafter with a head, which guesses from the target's hidden rows.

    To evaluate a committed token, the head reads the target's hidden row of the previous token. To evaluate a
    guess, it reads its own hidden row. If the target's rows for the beginning of a text are missing, the head
    attends only to later tokens.
    """

    def __init__(
        self,
        head: DistantHead,
        *,
        path_min: float = PATH_MIN,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Begin without sessions. A path whose probability is below path_min gets no more guesses."""
        self._head, self._path_min, self._clock = head, path_min, clock
        self._vocab = head.vocab  # kept, because a head builds it at each access
        self._cache = DraftCache(head)
        self._followed: dict[int, _HeadPath] = {}
        self.td = Smoothed(TD_WEIGHT)

    def obstacle(self, session: DraftSession) -> str | None:
        if len(session.tokens) >= self._head.n_ctx:
            return f"it has reached the end of this head's context of {self._head.n_ctx} tokens"
        new = session.tokens[session.n_kv : session.n_committed]
        if new and not 0 <= min(new) <= max(new) < self._vocab.size:
            return f"it has tokens outside this head's vocabulary of {self._vocab.size}"
        return None

    def wants(self, session: DraftSession) -> bool:
        """Return True if the head's path may grow, or if the hidden row for a new path has arrived."""
        followed = self._path_of(session)
        if session.lost:
            return False
        if not _goes_on(session, followed):
            return followed.first < session.n_committed - 1 <= followed.end
        room = session.n_ahead < session.max_ahead
        return room and session.score >= self._path_min and session.tokens[-1] not in self._vocab.eog

    def advance(self, sessions: Sequence[DraftSession]) -> list[DraftSession] | None:
        began = self._clock()
        batch, hidden, grown = Batch(), list[Hidden](), list[DraftSession]()
        for session in sessions:
            n_before = len(batch)
            followed = self._path_of(session)
            if not _goes_on(session, followed) or followed.hidden is None:
                self._add_committed(session, followed, batch, hidden)
            elif len(batch) < self._head.n_batch:
                self._cache.add(batch, session, 1, 1)
                hidden.append(followed.hidden)
            if len(batch) > n_before and batch.wanted[-1]:
                grown.append(session)
        if not batch:
            return None
        is_guess = len(batch) == len(grown)
        try:
            logits, own = self._head.evaluate(batch, np.concatenate(hidden))
        except BackendError:
            self._cache.drop([session.seq for session in sessions if session.seq != NO_SEQ])
            raise
        for i, session in enumerate(grown):
            self._take_guess(session, logits[i], own[i : i + 1])
        if is_guess:
            self.td.observe(self._clock() - began)
        return grown

    def close(self, session: DraftSession, *, keep: bool) -> None:
        followed = self._path_of(session)
        session.n_kv = min(session.n_kv, followed.n_true)
        self._cache.release(session, keep=keep)
        del self._followed[session.id]

    def _path_of(self, session: DraftSession) -> _HeadPath:
        """Return the session's _HeadPath, with newly arrived rows; a new one after each Open message."""
        followed = self._followed.get(session.id)
        if followed is None or followed.n_opened != session.n_opened:
            n_true = min(followed.n_true, session.n_kv) if followed else 0
            self._followed[session.id] = followed = _HeadPath(session.n_opened, n_true=n_true)
        while session.rows:
            followed.add_rows(session.rows.popleft())
        return followed

    def _add_committed(
        self, session: DraftSession, followed: _HeadPath, batch: Batch, hidden: list[Hidden]
    ) -> None:
        """Fill the batch with committed tokens that the head lacks, and `hidden` with the rows it reads.

        The last committed token has logits. The session's guesses are forgotten.
        """
        session.forget_guesses()
        session.n_kv = followed.n_true = min(session.n_kv, followed.n_true)
        session.evidence.clear()
        self._cache.trim(session)
        if not self._cache.admit(session):
            return
        start = min(session.n_kv, session.n_committed - 1)
        if followed.first > max(0, start - 1):  # rows are missing, and a sequence has no gaps
            start = followed.first + 1
            session.n_kv = 0
        else:
            session.n_kv = start
        self._cache.trim(session)
        session.n_kv = start
        n = min(session.n_committed - start, MOST_WAITING, self._head.n_batch - len(batch))
        if n < 1:
            return
        is_last = start + n == session.n_committed
        self._cache.add(batch, session, n, int(is_last))
        hidden.append(self._rows_before(followed, start, n))
        followed.n_true = start + n
        followed.forget_rows(followed.n_true - 1)

    def _rows_before(self, followed: _HeadPath, start: int, n: int) -> Hidden:
        """Return the hidden rows that the head reads with the n tokens from `start` on.

        For each token, this is the row of the token before it; zeros for the first token of the text.
        """
        at = start - 1 - followed.first
        found = [row.astype(np.float32) for row in followed.rows[max(0, at) : at + n]]
        fused = (
            self._head.fuse_rows(np.stack(found)) if found else np.empty((0, self._head.n_embd), np.float32)
        )
        return fused if at >= 0 else np.concatenate([np.zeros((1, fused.shape[1]), np.float32), fused])

    def _take_guess(self, session: DraftSession, row: Logits, own: Hidden) -> None:
        """Add a guess from the logits `row` to the session's path, and its second choice as a branch.

        `own` is the head's hidden row, with which the guess will be evaluated.
        """
        followed, place = self._path_of(session), len(session.tokens)
        position = place + session.n_dropped
        score = session.score
        guessed = guess(row, session.sampling, position, second=True)
        session.add(guessed._replace(second=None, second_confidence=0.0))
        followed.last, followed.hidden = session.path.guesses[-1], own.copy()
        second, confidence = guessed.second, guessed.second_confidence
        if second is not None and score * confidence >= self._path_min:
            session.branch(place, DraftGuess(second, confidence))


def _goes_on(session: DraftSession, followed: _HeadPath) -> bool:
    """Return True if the session's path still ends with the head's last guess."""
    return bool(session.path.guesses) and session.path.guesses[-1] is followed.last
