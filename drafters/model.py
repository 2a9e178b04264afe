"""Guesses from a small model, several sessions to a decode, each with its own sequence of one KV cache."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

from drafters.session import NO_SEQ, DraftSession
from server.cache.prefix import PrefixCache, Reuse
from server.errors import BackendError
from server.llama.backend import Backend, Batch
from server.sampling.draw import draw, probability

PATH_MIN = 0.05  # a path less likely than this is not worth another guess
SMOOTHING = 0.05  # of the measured time per guess
SHARED_ROWS = 64  # most rows of a step while some session drafts: another's long prompt must not hold it up


class ModelDrafter:
    """Implements Drafter. Mirrors the lead's sampling and its noise, so that it guesses the draw itself.

    A closed session's sequence stays cached; a session that continues it evaluates only what is new. Every
    session that has a sequence reserves cells for all its tokens; one that outgrows the cache gives its
    sequence up, so that the others go on.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        path_min: float = PATH_MIN,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._backend = backend
        self._path_min = path_min
        self._clock = clock
        self._cache = PrefixCache(backend.n_seqs, partial=backend.can_trim)
        self._held: dict[int, DraftSession] = {}  # by sequence
        self._lengths = [0] * backend.n_seqs  # cells in use, by sequence
        self._td_s = 0.0

    @property
    def td_us(self) -> int:
        return round(self._td_s * 1e6)

    def obstacle(self, session: DraftSession) -> str | None:
        vocab, pending = self._backend.vocab, session.pending
        limit = min(self._backend.n_ctx, self._backend.n_cells)
        if len(session.tokens) >= limit:
            return f"it has reached the end of this model's context of {limit} tokens"
        if min(pending) < 0 or max(pending) >= vocab.size:
            return f"it has tokens outside this model's vocabulary of {vocab.size}"
        return None

    def wants(self, session: DraftSession) -> bool:
        return (
            not session.lost
            and session.n_ahead < session.max_ahead
            and session.tokens[-1] not in self._backend.vocab.eog
            and session.score >= self._path_min
        )

    def advance(self, sessions: Sequence[DraftSession]) -> list[DraftSession] | None:
        began = self._clock()
        batch, ready = self._build(sessions)
        if not batch:
            return None
        try:
            logits = self._backend.decode(batch)
        except BackendError:
            for seq in set(batch.seqs):
                self._drop(seq)
            raise
        for session, row in zip(ready, logits, strict=True):
            token = draw(row, session.sampling, len(session.tokens))
            session.extend(token, probability(row, token))
        if len(batch) == len(ready):  # guesses only: no catching up in this step
            spent = self._clock() - began
            self._td_s += (spent - self._td_s) * (SMOOTHING if self._td_s else 1.0)
        return ready

    def close(self, session: DraftSession, *, keep: bool) -> None:
        if session.seq == NO_SEQ:
            return
        del self._held[session.seq]
        n_kept = self._shrink(session.seq, session.n_kv if keep else 0)
        self._cache.release(session.seq, session.tokens[:n_kept])
        session.seq, session.n_kv = NO_SEQ, 0

    def _build(self, sessions: Sequence[DraftSession]) -> tuple[Batch, list[DraftSession]]:
        """Rows for as many sessions as fit in one decode, and those whose next guess it gives. Those with
        the least to evaluate come first, those without a sequence last, in the order they came."""
        for session in self._held.values():
            session.n_kv = self._shrink(session.seq, session.n_kv)  # guesses that did not come true
        batch, ready = Batch(), list[DraftSession]()
        for session in sorted(sessions, key=_n_to_evaluate):
            if not self._admit(session):
                continue
            pending = session.pending
            most = min(SHARED_ROWS, self._backend.n_batch) if ready else self._backend.n_batch
            n = min(len(pending), most - len(batch))
            if n < 1:
                break
            complete = n == len(pending)
            batch.extend(session.seq, session.n_kv, pending[:n], int(complete))
            session.n_kv += n
            self._lengths[session.seq] += n
            if complete:
                ready.append(session)
        return batch, ready

    def _admit(self, session: DraftSession) -> bool:
        """Whether the session has a sequence and cells for all its tokens. Forgets closed sessions to make
        room."""
        others = sum(len(other.tokens) for other in self._held.values() if other is not session)
        free = self._backend.n_cells - others - len(session.tokens)
        if free < 0:
            self.close(session, keep=True)
            return False
        if session.seq == NO_SEQ:
            reuse = self._cache.take(session.tokens)
            if reuse is None:
                return False
            session.seq, session.n_kv = reuse.seq, self._prepare(reuse)
            self._held[reuse.seq] = session
        while self._cache.n_cells > free:
            evicted = self._cache.evict()
            assert evicted is not None, "cells without an owner"
            self._shrink(evicted, 0)
        return True

    def _prepare(self, reuse: Reuse) -> int:
        """Make the sequence hold the prefix to be reused; returns how much it holds."""
        if reuse.source == reuse.seq:
            return self._shrink(reuse.seq, reuse.length)
        self._shrink(reuse.seq, 0)
        if reuse.length:
            self._backend.copy(reuse.source, reuse.seq, reuse.length)
            self._lengths[reuse.seq] = reuse.length
        return reuse.length

    def _shrink(self, seq: int, length: int) -> int:
        """Forget the end of a sequence, or all of it where the model cannot forget a part. Returns how much
        of the first `length` is left."""
        if length < self._lengths[seq]:
            self._lengths[seq] = length if self._backend.can_trim else 0
            self._backend.trim(seq, self._lengths[seq])
        return min(length, self._lengths[seq])

    def _drop(self, seq: int) -> None:
        """What this sequence holds is unknown after a failed decode."""
        self._backend.trim(seq, 0)
        self._lengths[seq] = 0
        self._cache.release(seq, [])
        session = self._held.pop(seq)
        session.seq, session.n_kv = NO_SEQ, 0


def _n_to_evaluate(session: DraftSession) -> float:
    return math.inf if session.seq == NO_SEQ else len(session.tokens) - session.n_kv
