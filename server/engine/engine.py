"""The heart: drain, admit, plan, decode, verify, commit. One thread owns it, and with it the model."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from statistics import median

from server.cache.prefix import common_prefix
from server.cache.snapshots import Snapshots
from server.engine.building import Builder
from server.engine.decide import committed_event, decide, logprobs_of
from server.engine.events import Event, Failed, Finished, FinishReason, Started
from server.engine.proposer import NOTHING, Ask, Proposal, Proposer
from server.engine.request import GenerationRequest
from server.engine.residence import LATER, Kept, Placed, Residence
from server.engine.scheduler import Limits, Work, plan
from server.engine.search import Searches
from server.engine.sequences import Rows, Sequences
from server.engine.session import NO_SEQ, Session
from server.engine.shift import shift
from server.engine.slots import Slots
from server.errors import BackendError, DuoError
from server.llama.backend import Backend, Logits

PREFILL = 32  # prompt rows of a step that says what evaluating a token takes
WORTH_SHARING = 32  # prompt tokens: for fewer it is not worth waiting until another session has them


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
        self._clock = clock
        self._sequences = Sequences(backend, n_slots, limits.leaves)
        if not backend.can_trim:
            draft_max = limits.draft_max if self._sequences.checkpoints.can_guess else 0
            limits = replace(limits, draft_max=draft_max, leaves=1, stable_width=1, again=True)
        self._limits = limits
        self._searches = Searches(backend, self._sequences, n_slots)
        self._builder = Builder(backend.n_ctx, backend.n_cells, limits, self._sequences, self._searches)
        self._residence = Residence(backend, self._sequences, self._n_held)
        self._cache = self._residence.cache
        self._waiting: deque[Session] = deque()
        self._active: list[Session] = []
        self._overheads: deque[float] = deque(maxlen=1024)
        self.meanwhile: Callable[[], None] | None = None  # to be done while a GPU works
        self.slots = Slots(self._residence, self._active, self._limits, self._may_draft)

    def save_to(self, snapshots: Snapshots, kept: Kept | None = None) -> None:
        """Where conversations go that the KV cache has no room for; to be said before the first request."""
        self._residence.save_to(snapshots, kept)

    # -- what callers ask for ----------------------------------------

    def vet(self, request: GenerationRequest) -> None:
        """Raises InvalidRequestError for what this engine could never do. Safe from any thread."""
        self._searches.vet(request)

    def submit(self, session_id: int, request: GenerationRequest) -> None:
        """Queue a request. Drafters hear of it at once, so that they prefill while it waits."""
        self.vet(request)
        session = Session(session_id, request, self._backend.n_ctx)
        if self._may_draft(session):
            self._open(session)
        self._waiting.append(session)

    def cancel(self, session_id: int, keep: int | None = None) -> None:
        """End a session now. The reply is its first `keep` generated tokens (None: all), of which all but the
        last stay cached. Unknown ids are ignored."""
        for session in [*self._active, *self._waiting]:
            if session.id == session_id:
                n_all = len(session.tokens) if keep is None else session.n_prompt + keep - session.n_dropped
                self._end(session, Finished("cancelled", session.stats(self._clock())), n_all - 1)

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
        self._step_aside()
        self._admit()
        self._shift()
        works = plan(self._active, self._limits)
        self._residence.at_work(bool(works))
        if not works:
            return bool(self._active)
        works = self._make_room(works)
        proposing = self._clock()
        proposals = self._propose(works)
        proposed = self._clock()
        batch, placed = self._builder.build(works, proposals, self._width(works), self._n_held())
        batch.meanwhile = self.meanwhile
        plain = all(work.session.decodes and work.session.request.n_beams == 1 for work in works)
        decoding = self._clock()
        try:
            logits = self._backend.decode(batch)
        except BackendError as error:
            for work in works:
                self._fail(work.session, error)
            return True
        decoded = self._clock()
        n_prompt = len(batch) - sum(batch.wanted)
        if n_prompt >= PREFILL and not plain:
            self._residence.pace.evaluated(n_prompt, decoded - decoding, self._n_held())
        n_committed = sum(len(work.session.tokens) for work in works)
        at, n_cells = 0, self._n_held()
        for work, proposal, place in zip(works, proposals, placed, strict=True):
            at = self._commit(work, proposal, place, logits, at)
        if plain:
            now = self._clock()
            n_new = sum(len(work.session.tokens) for work in works) - n_committed
            self._residence.pace.stepped(decoded - decoding, n_cells)
            self._proposer.stepped(len(batch), n_cells, decoded - decoding, now - began, n_new, len(works))
            if len(works) == 1:
                own_s = proposed - proposing - self._proposer.spent_s
                self._overheads.append(proposing - began + own_s + decoding - proposed + now - decoded)
        return True

    def _step_aside(self) -> None:
        """Sessions that only precompute end when they are done, or when somebody has better to do."""
        asked = any(not session.request.precompute for session in (*self._active, *self._waiting))
        for session in list(self._active):
            if session.request.precompute and (asked or session.n_pending <= 1):
                reason = "stop" if session.n_pending <= 1 else "cancelled"
                self._end(session, Finished(reason, session.stats(self._clock())), len(session.tokens))

    def _admit(self) -> None:
        for session in list(self._waiting):
            if len(self._active) >= self._n_slots:
                return
            if session.request.precompute and self._active:
                continue
            reuse = self._place(session)
            if reuse is None:
                return
            if reuse == LATER:  # those behind it may go first meanwhile
                continue
            self._waiting.remove(session)
            self._active.append(session)
            session.seq, session.n_kv = reuse.seq, self._sequences.take(reuse)
            session.mark_at = self._mark_at(session)
            self._residence.make_way(session.n_pending)
            if session.request.n_beams > 1:
                self._searches.begin(session, self._take_further(session))
            if session.admitted_at is None:
                session.admitted_at, session.n_cached = self._clock(), session.n_kv
                self._emit(session.id, Started(session.n_prompt, session.n_cached))

    def _place(self, session: Session) -> Placed:
        """Where in the KV cache the session shall go, None if it has to wait for another one's end."""
        if not self._fits(session) or self._may_share_soon(session):
            return None
        if self._sequences.n_main - self._cache.n_busy < self._searches.n_conversations(session.request):
            return None
        if self._limits.is_stable(session):  # its bits shall not depend on what else is in the cache
            return self._residence.place_alone(session.request.salt)
        busy = {s.seq: s.tokens[: s.n_reusable] for s in self._active}
        return self._residence.place(session.tokens, session.request.salt, busy)

    def _take_further(self, session: Session) -> list[int]:
        """Sequences beyond the one that a session has, for the beams that its shadows are too few for."""
        n = self._searches.n_conversations(session.request) - 1
        taken = (self._residence.place_empty(session.request.salt) for _ in range(n))
        return [reuse.seq for reuse in taken if reuse is not None]

    def _may_share_soon(self, session: Session) -> bool:
        """Whether a running session is still evaluating a prompt that begins alike: better to copy it then
        than to evaluate it twice (the choices of one request, say)."""
        for other in self._active:
            if other.request.salt != session.request.salt:
                continue
            if other.n_pending > 1 and other.n_intact is None and self._backend.can_trim:
                shared = common_prefix(other.tokens, session.tokens)
                if min(shared, len(session.tokens) - 1) > other.n_kv + WORTH_SHARING:
                    return True
        return False

    def _shift(self) -> None:
        """Make room for the sessions whose context is full. Whoever guesses is told the tokens anew."""
        for session in self._active:
            if not session.is_full or not session.decodes:
                continue
            reopen = self._may_draft(session) and not session.is_rewound
            if shift(session, self._sequences, self._backend) and reopen:
                self._proposer.close(session.id, keep=True)
                self._open(session)

    def _open(self, session: Session) -> None:
        sampling, bounds = session.request.sampling, self._limits.bounds(session)
        self._proposer.open(session.id, session.tokens, sampling, bounds, session.n_dropped)

    def _fits(self, session: Session) -> bool:
        """Whether the session has a chance to run beside the active ones without pushing one out."""
        if any(self._limits.is_stable(other) for other in [*self._active, session]):
            return not self._active
        beside = [*self._active, session]
        n_tokens = sum(len(s.tokens) + s.request.n_beams * self._limits.n_chunk for s in beside)
        return not self._active or n_tokens <= self._backend.n_cells

    def _make_room(self, works: list[Work]) -> list[Work]:
        """KV cells for these rows: idle conversations go first, then guesses, then the youngest session,
        which is put back in the queue and evaluated again later."""
        while (missing := self._missing(works)) > 0:
            if self._residence.evict():
                continue
            if any(work.n_draft for work in works):
                for work in works:
                    work.n_draft = 0
            elif len(self._active) > 1:
                self._preempt(self._active[-1])
                works = plan(self._active, self._limits)
            else:
                raise AssertionError(f"one session of at most n_ctx tokens lacks {missing} cells")
        return works

    def _missing(self, works: list[Work]) -> int:
        rows = sum(work.n_rows + max(work.n_draft, self._builder.n_pad(work, 0)) for work in works)
        return self._n_held() + rows - self._backend.n_cells

    def _n_held(self) -> int:
        return self._cache.n_cells + sum(session.n_kv + session.n_extra for session in self._active)

    def _propose(self, works: list[Work]) -> list[Proposal]:
        """Guesses for the sessions that draw a token in this step, NOTHING for the others."""
        asks = [_ask(work) for work in works if work.completes and self._may_draft(work.session)]
        if not asks:
            return [NOTHING] * len(works)
        given = self._proposer.propose(asks, sum(work.n_rows for work in works), self._n_held())
        by_session = {ask.session: proposal for ask, proposal in zip(asks, given, strict=True)}
        return [by_session.get(work.session.id, NOTHING) for work in works]

    def _width(self, works: list[Work]) -> int:
        """Of the step, if it shall have one: the proposer was asked for this step only if somebody drafts."""
        guessing = any(work.completes and self._may_draft(work.session) for work in works)
        return self._proposer.width if guessing and all(work.n_pending == 1 for work in works) else 0

    def _commit(self, work: Work, proposal: Proposal, placed: Rows, logits: Logits, at: int) -> int:
        """Verify and commit one session's rows, the first of which is logits[at]; returns the next one's."""
        session = work.session
        if not work.completes:
            session.evaluated(work.n_pending)
            if session.n_kv == session.mark_at:
                self._sequences.checkpoints.mark(session.seq, session.n_kv)
            return at
        if session.request.n_beams > 1:
            return self._search(session, logits, at)
        end = at + 1 + len(proposal) + placed.n_pad
        try:
            verdict = decide(session, proposal, logits[at:], by_rejection=self._limits.by_rejection)
        except DuoError as error:  # a grammar beyond its limits, say
            self._fail(session, error)
            return end
        if len(verdict.nodes) < len(proposal) or placed.n_pad or placed.n_shadows:
            self._sequences.settle(session, placed, verdict.nodes)
        else:
            session.evaluated(work.n_pending + len(verdict.nodes))
        session.commit(verdict, proposal, self._clock())
        if self._may_draft(session):
            self._proposer.committed(session.id, len(verdict.tokens), proposal, verdict.nodes)
        logprobs = logprobs_of(session.request.n_logprobs, verdict, logits[at:])
        self._emit(session.id, committed_event(verdict, proposal, logprobs))
        reason = session.end_reason()
        if reason:
            self._finish(session, reason)
        return end

    def _search(self, session: Session, logits: Logits, at: int) -> int:
        """The same for a beam search."""
        end = at + session.n_rows
        advance = self._searches.advance(session, logits[at:end], self._clock())
        if advance.committed:
            self._emit(session.id, advance.committed)
        if advance.reason:
            self._finish(session, advance.reason)
        return end

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
        n_most = len(session.tokens) - 1  # else reuse would tell who chose the last one
        n = max(0, min(session.n_reusable, n_keep, n_most))
        try:
            self._release(session, n)
            if self._may_draft(session):
                self._proposer.close(session.id, keep=n > 0)
        finally:
            self._emit(session.id, event)

    def _preempt(self, session: Session) -> None:
        self._active.remove(session)
        self._release(session, 0)
        session.lose_cells()
        self._waiting.appendleft(session)

    def _release(self, session: Session, length: int) -> None:
        if session.seq == NO_SEQ:
            return
        checkpoints = self._sequences.checkpoints
        if length < session.n_kv and not self._backend.can_trim:
            length = checkpoints.marked(session.seq) if length >= checkpoints.marked(session.seq) else 0
        self._sequences.trim(session.seq, length)
        mark = checkpoints.marked(session.seq)
        self._cache.release(session.seq, session.tokens[:length], mark=mark)
        for seq in self._searches.end(session):
            self._sequences.trim(seq, 0)
            self._cache.release(seq, [])
        session.seq, session.n_kv = NO_SEQ, 0

    def _mark_at(self, session: Session) -> int:
        if session.request.precompute:
            return 0
        return self._sequences.checkpoints.mark_at(session.seq, session.n_kv, len(session.tokens))

    def _may_draft(self, session: Session) -> bool:
        if self._limits.by_rejection and session.request.sampling.mirostat:
            return False  # it learns from its own draws only
        if session.request.n_beams > 1 or session.request.precompute:
            return False
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

    def tidy(self) -> bool:
        """There has been nothing to do for a moment: prepare for what may come. Returns whether it did."""
        return self._residence.copy_ahead()

    def rest(self, timeout_s: float) -> None:
        """No more steps will follow: save what is worth it, at most that long."""
        self._residence.save_all(timeout_s)

    def check(self) -> None:
        """Raises AssertionError unless an idle engine holds no session and every sequence is idle."""
        assert not self._active, "active sessions"
        assert not self._waiting, "waiting sessions"
        assert self._cache.n_busy == 0, "busy sequences"
        assert self._searches.idle(), "beam searches"
        assert self._proposer.idle(), "open sessions at the proposer"


def _ask(work: Work) -> Ask:
    constraint = work.session.constraint
    if constraint is None:
        return Ask(work.session.id, work.n_draft, n_pending=work.n_pending)
    return Ask(
        work.session.id,
        work.n_draft,
        constraint.forced() if work.n_draft > 0 else (),
        lambda tokens: constraint.n_allowed(tokens) == len(tokens),
        work.n_pending,
    )
