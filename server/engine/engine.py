"""The heart: drain, admit, plan, decode, verify, commit. One thread owns it, and with it the model."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from statistics import median

from server.cache.prefix import PrefixCache, Reuse
from server.engine.events import Committed, Event, Failed, Finished, FinishReason, Started
from server.engine.proposer import NOTHING, Proposal, Proposer
from server.engine.request import GenerationRequest
from server.engine.scheduler import Limits, Work, plan
from server.engine.session import NO_SEQ, Session
from server.engine.verify import verify
from server.errors import BackendError, DuoError
from server.llama.backend import Backend, Batch, Logits
from server.sampling.draw import draw


class Engine:
    """Generates for up to n_slots sessions at once; more wait in order. Not thread-safe.

    `emit(session id, event)` is called during step(), submit() and cancel(), and must not block.
    """

    def __init__(
        self,
        backend: Backend,
        proposer: Proposer,
        emit: Callable[[int, Event], None],
        *,
        n_slots: int = 4,
        limits: Limits | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._backend = backend
        self._proposer = proposer
        self._emit = emit
        self._n_slots = n_slots
        limits = limits or Limits(n_batch=backend.n_batch)
        self._limits = limits if backend.can_trim else replace(limits, draft_max=0)
        self._clock = clock
        self._cache = PrefixCache(backend.n_seqs, partial=backend.can_trim)
        self._waiting: deque[Session] = deque()
        self._active: list[Session] = []
        self._overheads: deque[float] = deque(maxlen=1024)
        for seq in range(backend.n_seqs):
            backend.trim(seq, 0)

    # -- what callers ask for ----------------------------------------

    def submit(self, session_id: int, request: GenerationRequest) -> None:
        """Queue a request. Drafters hear of it at once, so that they prefill while it waits."""
        session = Session(session_id, request, self._backend.n_ctx)
        self._waiting.append(session)
        if self._may_draft(session):
            self._proposer.open(session_id, session.tokens, request.sampling)

    def cancel(self, session_id: int, keep: int | None = None) -> None:
        """End a session now. `keep` generated tokens stay cached (None: all). Unknown ids are ignored."""
        for session in [*self._active, *self._waiting]:
            if session.id == session_id:
                n_keep = len(session.tokens) if keep is None else session.n_prompt + keep
                self._end(session, Finished("cancelled", session.stats(self._clock())), n_keep)

    def fail_all(self, error: DuoError) -> None:
        """End every session with an error and forget what the KV cache holds of it."""
        for session in [*self._active, *self._waiting]:
            self._fail(session, error)

    # -- one step ----------------------------------------

    def step(self) -> bool:
        """Advance every session that can: prompts by a chunk, replies by at least one token.
        Returns whether there was anything to do. Raises only what is a defect of the server."""
        began = self._clock()
        self._proposer.drain()
        self._admit()
        works = plan(self._active, self._limits)
        if not works:
            return False
        works = self._make_room(works)
        proposals = [self._propose(work) for work in works]
        batch = self._build(works, proposals)
        decoding = self._clock()
        try:
            logits = self._backend.decode(batch)
        except BackendError as error:
            for work in works:
                self._fail(work.session, error)
            return True
        decoded = self._clock()
        at = 0
        for work, proposal in zip(works, proposals, strict=True):
            at = self._commit(work, proposal, logits, at)
        if len(works) == 1 and works[0].completes:
            self._overheads.append(decoding - began + self._clock() - decoded)
        return True

    def _admit(self) -> None:
        while self._waiting and len(self._active) < self._n_slots:
            session = self._waiting[0]
            reuse = self._cache.take(session.tokens) if self._fits(session) else None
            if reuse is None:
                return
            self._waiting.popleft()
            self._prepare(reuse)
            session.seq, session.n_kv = reuse.seq, reuse.length
            self._active.append(session)
            if session.admitted_at is None:
                session.admitted_at, session.n_cached = self._clock(), reuse.length
                self._emit(session.id, Started(session.n_prompt, session.n_cached))

    def _prepare(self, reuse: Reuse) -> None:
        if reuse.source != reuse.seq:
            self._trim(reuse.seq, 0)
            if reuse.length:
                self._backend.copy(reuse.source, reuse.seq, reuse.length)
        else:
            self._trim(reuse.seq, reuse.length)

    def _fits(self, session: Session) -> bool:
        """Whether the session has a chance to run beside the active ones without pushing one out."""
        n_tokens = sum(len(s.tokens) + self._limits.n_chunk for s in [*self._active, session])
        return not self._active or n_tokens <= self._backend.n_cells

    def _make_room(self, works: list[Work]) -> list[Work]:
        """KV cells for these rows: idle conversations go first, then guesses, then the youngest session,
        which is put back in the queue and evaluated again later."""
        while (missing := self._missing(works)) > 0:
            seq = self._cache.evict()
            if seq is not None:
                self._trim(seq, 0)
            elif any(work.n_draft for work in works):
                for work in works:
                    work.n_draft = 0
            elif len(self._active) > 1:
                self._preempt(self._active[-1])
                works = plan(self._active, self._limits)
            else:
                raise AssertionError(f"one session of at most n_ctx tokens lacks {missing} cells")
        return works

    def _missing(self, works: list[Work]) -> int:
        held = self._cache.n_cells + sum(session.n_kv for session in self._active)
        return held + sum(work.n_pending + work.n_draft for work in works) - self._backend.n_cells

    def _propose(self, work: Work) -> Proposal:
        return self._proposer.propose(work.session.id, work.n_draft) if work.n_draft > 0 else NOTHING

    def _build(self, works: list[Work], proposals: list[Proposal]) -> Batch:
        batch = Batch()
        for work, proposal in zip(works, proposals, strict=True):
            session, n_draft = work.session, len(proposal)
            rows = session.tokens[session.n_kv : session.n_kv + work.n_pending]
            rows += proposal.tokens
            batch.extend(session.seq, session.n_kv, rows, 1 + n_draft if work.completes else 0)
        return batch

    def _commit(self, work: Work, proposal: Proposal, logits: Logits, at: int) -> int:
        """Verify and commit one session's rows, the first of which is logits[at]; returns the next one's."""
        session = work.session
        if not work.completes:
            session.n_kv += work.n_pending
            return at
        sampling, position = session.request.sampling, len(session.tokens)
        verdict = verify(
            proposal,
            lambda node, i: draw(logits[at + 1 + node], sampling, position + i),
            session.request.stop_tokens,
            session.n_left,
        )
        session.n_kv += work.n_pending + len(verdict.nodes)
        if len(verdict.nodes) < len(proposal):
            self._trim(session.seq, session.n_kv)
        session.commit(verdict, proposal, self._clock())
        self._proposer.committed(session.id, len(verdict.tokens), proposal, verdict.nodes)
        self._emit(session.id, _committed_event(verdict.tokens, verdict.nodes, proposal))
        reason = session.end_reason()
        if reason:
            self._finish(session, reason)
        return at + 1 + len(proposal)

    # -- endings ----------------------------------------

    def _finish(self, session: Session, reason: FinishReason) -> None:
        self._end(session, Finished(reason, session.stats(self._clock())), len(session.tokens))

    def _fail(self, session: Session, error: DuoError) -> None:
        self._end(session, Failed(error), 0)

    def _end(self, session: Session, event: Event, n_keep: int) -> None:
        """Take the session out; its first n_keep tokens stay cached as far as they are evaluated."""
        if session in self._active:
            self._active.remove(session)
        else:
            self._waiting.remove(session)
        n = min(session.n_kv, n_keep, len(session.tokens) - 1)  # else reuse would tell who chose the last one
        self._release(session, n)
        if self._may_draft(session):
            self._proposer.close(session.id, keep=n > 0)
        self._emit(session.id, event)

    def _preempt(self, session: Session) -> None:
        self._active.remove(session)
        self._release(session, 0)
        self._waiting.appendleft(session)

    def _release(self, session: Session, length: int) -> None:
        if session.seq == NO_SEQ:
            return
        if length < session.n_kv or not length:
            length = length if self._backend.can_trim else 0
            self._trim(session.seq, length)
        self._cache.release(session.seq, session.tokens[:length])
        session.seq, session.n_kv = NO_SEQ, 0

    def _trim(self, seq: int, length: int) -> None:
        self._backend.trim(seq, length)

    def _may_draft(self, session: Session) -> bool:
        return self._limits.draft_max > 0 and session.request.speculation.n_max != 0

    # -- what others may know ----------------------------------------

    @property
    def n_active(self) -> int:
        return len(self._active)

    @property
    def n_waiting(self) -> int:
        return len(self._waiting)

    def step_overhead_us(self) -> float:
        """Median microseconds of Python outside decode in recent one-session steps; 0 before the first."""
        return median(self._overheads) * 1e6 if self._overheads else 0.0

    def check(self) -> None:
        """Raises AssertionError unless an idle engine holds no session and every sequence is idle."""
        assert not self._active, "active sessions"
        assert not self._waiting, "waiting sessions"
        assert self._cache.n_busy == 0, "busy sequences"
        assert self._proposer.idle(), "open sessions at the proposer"


def _committed_event(tokens: tuple[int, ...], nodes: tuple[int, ...], proposal: Proposal) -> Committed:
    if not proposal:
        return Committed(tokens, (None,) * len(tokens))
    sources = [proposal.sources[node] for node in nodes]
    rejected = tuple(t for i, t in enumerate(proposal.tokens) if i not in nodes)
    padding = (None,) * (len(tokens) - len(nodes))
    return Committed(tokens, (*sources, *padding), len(proposal), rejected)
