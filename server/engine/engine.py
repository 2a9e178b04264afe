"""Run the step: admit, schedule, draft, decode, commit, learn. One thread owns the engine and the model."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack

from server.engine import endings
from server.engine.admission import admit, end_precomputing, make_room
from server.engine.building import build
from server.engine.commit import StepCommit
from server.engine.drafting import draft, open_session, shift_full
from server.engine.events import Event, Finished, Started
from server.engine.meter import Meter
from server.engine.proposer import Plan, Proposer, Step
from server.engine.request import GenerationRequest
from server.engine.scheduler import Limits, plan
from server.engine.session import Session
from server.engine.slots import Slots
from server.engine.state import EngineState
from server.errors import BackendError, DuoError, FieldError
from server.llama.backend import Backend

# In steps of more sessions than this, event loop and drafters get the previous step's tokens before the
# decode, not during it. With many rows, launching takes most of a decode (10 of 14 ms with 64 sessions on an
# H100), so work during the decode would delay the engine afterwards. Half: 5 to 8 sessions gain nothing,
# since they were delayed by 0.05 ms at most; twice: 16 clients with drafts lose a part of their gain of 15
# percent (ADR 1).
MANY_SESSIONS = 8


class Engine:
    """Generates for up to n_slots sessions at once; others wait in order. Not thread-safe.

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
        limits = limits or Limits(n_batch=backend.n_batch)
        self._state = state = EngineState(backend, proposer, emit, n_slots, limits, clock)
        self.meter = Meter(state)
        self.residence = state.residence
        # before: called before a decode of more than MANY_SESSIONS sessions; meanwhile: while a GPU decodes
        self.before: Callable[[], None] | None = None
        self.meanwhile: Callable[[], None] | None = None
        self.slots = Slots(state)
        self._over: Step | None = None  # the previous step, until the proposer has learned from it

    def vet(self, request: GenerationRequest) -> None:
        """Raise InvalidRequestError for a request that this engine can never serve. Safe from any thread."""
        self._state.searches.vet(request)
        n_slots = self._state.n_slots
        if request.slot is not None and not 0 <= request.slot < n_slots:
            raise FieldError(
                "id_slot", f"there is no slot {request.slot}: slots are numbered 0 to {n_slots - 1}"
            )

    def submit(self, session_id: int, request: GenerationRequest) -> None:
        """Queue a request, and announce it to drafters at once, so that they prefill while it waits."""
        self.vet(request)
        session = Session(session_id, request, self._state.backend.n_ctx)
        if request.begun and self._has_ended(session):
            return
        open_session(self._state, session)
        self._state.waiting.append(session)

    def _has_ended(self, session: Session) -> bool:
        """Report the end and return True if request.begun is the whole reply; else set session.stride."""
        state, stopped = self._state, session.request.begun[-1] in session.request.stop_tokens
        if reason := "stop" if stopped else session.end_reason():
            now = state.clock()
            state.emit(session.id, Started(session.n_prompt, 0, at=now))
            state.emit(session.id, Finished(reason, session.stats(now)))
            return True
        session.stride = state.limits.stable_width if state.limits.is_stable(session) else 0
        return False

    def cancel(self, session_id: int, keep: int | None = None) -> None:
        """End a session now; unknown ids are ignored.

        The reply is its first `keep` generated tokens (None: all). All of them except the last stay cached.
        """
        for session in self._state.sessions:
            if session.id == session_id:
                endings.cancel(self._state, session, keep)

    def fail_all(self, error: DuoError) -> None:
        """End every session with this error; none of their tokens stay cached."""
        with ExitStack() as each:  # goes on with the others if one of them raises
            for session in self._state.sessions:
                each.callback(endings.fail, self._state, session, error)

    def step(self) -> bool:
        """Advance every session that can: prompts by a chunk, replies by at least one token.

        Returns False if there was nothing to do. Raises only for defects of the server.
        """
        state, meter = self._state, self.meter
        meter.begin()
        end_precomputing(state)
        admit(state)
        shift_full(state)
        works = plan(state.active, state.limits)
        state.residence.snapshots.at_work(bool(works))
        if not works:
            if self._over:
                self._learn_from(self._over)
            draft(state, works, state.n_used())
            return bool(state.active)
        works = make_room(state, works)
        n_used = state.n_used()
        guesses = draft(state, works, n_used)
        batch, layouts = build(state, works, guesses, n_used)
        batch.meanwhile = lambda: self._work_meanwhile(guesses)
        if len(works) > MANY_SESSIONS:
            self._tell_early(guesses)
        try:
            logits = meter.decode(batch, works, n_used)
        except BackendError as error:
            for work in works:
                endings.fail(state, work.session, error)
            return True
        if self._over:
            self._learn_from(self._over)
        at, commits = 0, StepCommit(state, guesses)
        for work, proposal, layout in zip(works, guesses.proposals, layouts, strict=True):
            at = commits.add(work, proposal, layout, logits, at)
        over = meter.end(works, guesses, commits.outcomes)
        if state.backend.overlaps:
            self._over = over
        else:
            state.proposer.learn(over)
        return True

    def _learn_from(self, over: Step) -> None:
        """Let the proposer learn from a finished step. If a GPU decodes, this runs during the next decode."""
        self._over = None
        self._state.proposer.learn(over)

    def _tell_early(self, guesses: Plan) -> None:
        """Report the previous step to event loop and proposer, before a decode of many sessions begins.

        guesses: The plan of the step that is decoded next.
        """
        if self.before is not None:
            self.before()
        if self.overlaps:
            self._state.proposer.meanwhile(guesses, decodes=False)

    def _work_meanwhile(self, guesses: Plan) -> None:
        """Do the work that can wait until a GPU decodes; `guesses` is the plan of the decoded step."""
        if self.meanwhile is not None:
            self.meanwhile()
        self._state.proposer.meanwhile(guesses)
        if self._over:
            self._learn_from(self._over)

    @property
    def overlaps(self) -> bool:
        """True if a GPU decodes, which leaves this thread free meanwhile."""
        return self._state.backend.overlaps

    @property
    def n_slots(self) -> int:
        return self._state.n_slots

    @property
    def n_active(self) -> int:
        return len(self._state.active)

    @property
    def n_waiting(self) -> int:
        return len(self._state.waiting)
