"""Guesses from a small model, several sessions to a decode, each with its own sequence of one KV cache."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from drafters.session import NO_SEQ, DraftSession
from server.cache.prefix import PrefixCache
from server.errors import BackendError
from server.llama.backend import Backend, Batch
from server.sampling.draw import draw, probability

PATH_MIN = 0.05  # a path less likely than this is not worth another guess
SMOOTHING = 0.05  # of the measured time per guess


class ModelDrafter:
    """Implements Drafter. Mirrors the lead's sampling and its noise, so that it guesses the draw itself.

    A closed session's sequence stays cached; a session that continues it evaluates only what is new.
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
        self._td_s = 0.0

    @property
    def td_us(self) -> int:
        return round(self._td_s * 1e6)

    def wants(self, session: DraftSession) -> bool:
        return (
            session.n_ahead < session.max_ahead
            and len(session.tokens) < self._backend.n_ctx
            and session.tokens[-1] not in self._backend.vocab.eog
            and session.score >= self._path_min
            and max(session.pending) < self._backend.vocab.size
        )

    def advance(self, sessions: Sequence[DraftSession]) -> list[DraftSession]:
        began = self._clock()
        batch, ready = self._build(sessions)
        if not batch:
            return []
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
        n_keep = session.n_kv if keep else 0
        self._backend.trim(session.seq, n_keep)
        self._cache.release(session.seq, session.tokens[:n_keep])
        session.seq, session.n_kv = NO_SEQ, 0

    def _build(self, sessions: Sequence[DraftSession]) -> tuple[Batch, list[DraftSession]]:
        """Rows for as many sessions as fit in one decode, and those whose next guess it gives."""
        batch, ready = Batch(), list[DraftSession]()
        for seq, session in self._held.items():
            self._backend.trim(seq, session.n_kv)  # guesses that did not come true
        for session in sessions:
            n = min(len(session.pending), self._backend.n_batch - len(batch))
            if n < 1 or not self._place(session) or not self._make_room(len(batch) + n):
                continue
            n = min(len(session.pending), n)  # placing may have found a longer prefix
            complete = n == len(session.pending)
            batch.extend(session.seq, session.n_kv, session.pending[:n], int(complete))
            session.n_kv += n
            if complete:
                ready.append(session)
        return batch, ready

    def _place(self, session: DraftSession) -> bool:
        """Give the session a sequence, if there is one to give."""
        if session.seq == NO_SEQ:
            reuse = self._cache.take(session.tokens)
            if reuse is None:
                return False
            session.seq, session.n_kv = reuse.seq, reuse.length
            self._backend.trim(reuse.seq, reuse.length)
            self._held[reuse.seq] = session
        return True

    def _make_room(self, n_rows: int) -> bool:
        """Whether the KV cache has room for these rows; forgets closed sessions to make it."""
        while True:
            held = self._cache.n_cells + sum(session.n_kv for session in self._held.values())
            if held + n_rows <= self._backend.n_cells:
                return True
            seq = self._cache.evict()
            if seq is None:
                return False
            self._backend.trim(seq, 0)

    def _drop(self, seq: int) -> None:
        """What this sequence holds is unknown after a failed decode."""
        session = self._held.pop(seq)
        self._backend.trim(seq, 0)
        self._cache.release(seq, [])
        session.seq, session.n_kv = NO_SEQ, 0
