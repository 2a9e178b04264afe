"""Admit waiting sessions to the KV cache, and preempt sessions when cells run out."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from server.cache.prefix import Reuse
from server.engine import endings
from server.engine.building import n_pad
from server.engine.events import Started
from server.engine.residence import LATER, Placed
from server.engine.scheduler import Work, plan
from server.engine.session import NO_SEQ, Session
from server.engine.state import EngineState

WORTH_SHARING = 32
"""Minimum common tokens, not evaluated yet, for which a session waits for another session's prefill."""


def end_precomputing(state: EngineState) -> None:
    """End sessions that only precompute a prompt, if it is evaluated or another session wants a reply.

    A session that wants a reply does not end a `patient` session that has no sequence yet.
    """
    sessions = state.sessions
    precomputing = [session for session in sessions if session.request.precompute]
    asked = len(precomputing) < len(sessions)
    for session in precomputing:
        begun = session.seq != NO_SEQ
        if begun and session.n_pending <= 1:
            endings.finish(state, session, "stop")
        elif asked and (begun or not session.request.patient):
            endings.finish(state, session, "cancelled")


def admit(state: EngineState) -> None:
    """Make waiting sessions active, in turn, while slots and KV cache have room."""
    while state.waiting and len(state.active) < state.n_slots and _admit_next(state):
        pass


def _admit_next(state: EngineState) -> bool:
    """Admit one waiting session; return False if none can be admitted."""
    for session in _in_turn(state):
        if session.request.precompute and state.active:
            continue
        place = _place_session(state, session)
        if place is None:
            return False
        if place != LATER:
            _begin_session(state, session, place)
            return True
    return False


def _in_turn(state: EngineState) -> list[Session]:
    """Return the waiting sessions in order of admission: by their tenants' rank (Turns), then by arrival."""
    if len({session.request.tenant for session in state.waiting}) == 1:
        return list(state.waiting)
    held = Counter[str]()
    for session in state.active:
        held[session.request.tenant] += state.searches.n_conversations(session.request)
    return sorted(state.waiting, key=lambda session: state.turns.rank(session.request.tenant, held))


def _begin_session(state: EngineState, session: Session, place: Reuse) -> None:
    state.waiting.remove(session)
    state.active.append(session)
    state.turns.took(session.request.tenant)
    session.seq = place.seq
    if (length := session.before_picture(place.length)) < place.length:
        place = replace(place, length=length if state.backend.can_trim else 0)
    session.n_kv = state.sequences.take(place)
    if not session.request.precompute:
        n_prompt = len(session.tokens)
        checkpoint_at = state.sequences.checkpoints.turn_checkpoint_at(session.seq, session.n_kv, n_prompt)
        session.checkpoint_at = session.before_picture(checkpoint_at)
    number = state.slot_numbers.begin(session, state.active)
    state.residence.make_way(session.n_pending)
    if session.request.n_beams > 1:
        n_further = state.searches.n_conversations(session.request) - 1
        further = (state.residence.place_empty(session.request.salt) for _ in range(n_further))
        state.searches.begin(session, [reuse.seq for reuse in further if reuse is not None])
    if session.admitted_at is None:
        session.admitted_at, session.n_cached = state.clock(), min(session.n_kv, session.n_prompt)
        began = Started(session.n_prompt, session.n_cached, number, session.admitted_at)
        state.emit(session.id, began)


def make_room(state: EngineState, works: list[Work]) -> list[Work]:
    """Free cells for a step, and return the work for which there are cells.

    Idle conversations leave the KV cache first. If that is not enough, guesses are dropped, then the session
    admitted last goes back to the queue.
    """
    while (missing := _n_missing(state, works)) > 0:
        if state.residence.evict():
            continue
        if any(work.n_draft for work in works):
            for work in works:
                work.n_draft = 0
        elif len(state.active) > 1:
            endings.preempt(state, state.active[-1])
            works = plan(state.active, state.limits)
        else:
            raise AssertionError(f"one session of at most n_ctx tokens lacks {missing} cells")
    return works


def _place_session(state: EngineState, session: Session) -> Placed:
    """Claim a sequence for a session.

    Returns:
        What was claimed; LATER if this session must wait but others may be admitted; None if all must wait.
    """
    if _may_share_soon(state, session):
        return LATER
    if not _fits_beside(state, session):
        return None
    salt, number = session.request.salt, session.request.slot
    slot = None if number is None else state.slot_numbers.seq(number)
    if slot is not None and state.cache.is_busy(slot):
        return LATER
    if state.sequences.n_main - state.cache.n_busy < state.searches.n_conversations(session.request):
        return None
    if state.limits.is_stable(session):  # its logits must not depend on what else is in the cache
        return state.residence.place_alone(salt)
    if not session.request.reuse:
        return state.residence.place_empty(salt, slot)
    busy = {other.seq: (other.tokens, other.n_reusable) for other in state.active}
    return state.residence.place(session.tokens, salt, busy, slot)


def _may_share_soon(state: EngineState, session: Session) -> bool:
    """Return True while an active session evaluates a prompt with the same beginning.

    Copying its cells afterwards is cheaper than evaluating the beginning twice, for example for several
    choices of one request.
    """
    if not state.backend.can_trim or not session.request.reuse or state.limits.is_stable(session):
        return False
    tokens = session.tokens
    for other in state.active:
        if (n_pending := other.n_pending) > 1 and other.n_intact is None:
            n = len(other.tokens) - n_pending + WORTH_SHARING + 1
            alike = n < len(tokens) and other.tokens[:n] == tokens[:n]
            if alike and other.request.salt == session.request.salt:
                return True
    return False


def _fits_beside(state: EngineState, session: Session) -> bool:
    """Return True if the session can run beside the active ones without preempting one in its first step."""
    if not state.active:
        return True
    beside = [*state.active, session]
    if any(state.limits.is_stable(one) for one in beside):
        return False
    n_tokens = sum(len(one.tokens) + one.request.n_beams * state.limits.n_chunk for one in beside)
    return n_tokens <= state.backend.n_cells


def _n_missing(state: EngineState, works: list[Work]) -> int:
    """Return the number of cells that this work needs beyond the free ones; 0 or less if it fits."""
    n_ctx = state.backend.n_ctx
    rows = sum([work.n_rows + work.n_draft for work in works])
    if len(works) == 1 and state.limits.is_stable(works[0].session):  # it runs alone
        rows += max(0, n_pad(state.limits, n_ctx, works[0], 0) - works[0].n_draft)
    return state.n_used() + rows - state.backend.n_cells
