"""What the engine tells the proposer, and asks of it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress

from server.engine.proposer import NOTHING, Ask, OpenedSession, Planned
from server.engine.scheduler import Work
from server.engine.session import Session
from server.engine.shift import shift
from server.engine.state import EngineState

logger = logging.getLogger("duo.engine")


def open_session(state: EngineState, session: Session) -> None:
    """Tell the proposer of a session that may draft. One that it fails on goes on without drafts."""
    if not _may_draft(state, session):
        return
    sampling, bounds = session.request.sampling.mirrored(), state.limits.bounds(session)
    try:
        state.proposer.open(OpenedSession(session.id, session.tokens, sampling, bounds, session.n_dropped))
        session.drafts = True
    except Exception:
        logger.exception("session %d gets no drafts", session.id)
        session.drafts = False
        with suppress(Exception):
            state.proposer.close(session.id, keep=False)


def shift_full(state: EngineState) -> None:
    """Make room in the sessions whose context is full. The proposer is told their tokens anew."""
    for session in state.active:
        if not session.is_full or not session.decodes:
            continue
        reopen = session.drafts and not session.is_rewound
        if shift(session, state.sequences, state.backend) and reopen:
            state.proposer.close(session.id, keep=True)
            open_session(state, session)


def propose(state: EngineState, works: list[Work], n_held: int) -> Planned:
    """One proposal per work: guesses for the sessions that draw a token in this step, else NOTHING; and to
    how many rows the step is padded. n_held: cells in use."""
    planned = _guesses(state, works, n_held)
    n_rows = len(works) + sum(map(len, planned.proposals))
    if n_rows == 1 or planned.width or not _may_pad(state, works):
        return planned
    return planned._replace(least=state.proposer.padded(n_rows, n_held))


def _guesses(state: EngineState, works: list[Work], n_held: int) -> Planned:
    drafting = [work for work in works if work.completes and work.session.drafts]
    state.plain_s, state.passed = 0.0, False
    if not drafting:
        return Planned([NOTHING] * len(works))
    n_rows = sum(work.n_rows for work in works)
    ruled = any(work.session.constraint for work in drafting)
    if state.rests and not ruled:
        state.passed = True
        state.proposer.passed(len(drafting), n_rows)
        return Planned([NOTHING] * len(works))
    planned = state.proposer.propose([_ask(work) for work in drafting], n_rows, n_held)
    state.plain_s = planned.plain_s
    if len(drafting) == n_rows:
        return planned
    given = {work.session.id: one for work, one in zip(drafting, planned.proposals, strict=True)}
    width = planned.width if all(work.n_pending == 1 for work in works) else 0
    return Planned([given.get(work.session.id, NOTHING) for work in works], width, planned.spent_s)


def _may_pad(state: EngineState, works: list[Work]) -> bool:
    """Whether the step has one row for each session and its guesses, and no stable one, which is alone."""
    limits = state.limits
    if limits.again or limits.streams:
        return False
    for work in works:
        session = work.session
        if work.n_pending > 1 or not session.decodes or session.request.n_beams > 1:
            return False
    return not limits.is_stable(works[0].session)


def _may_draft(state: EngineState, session: Session) -> bool:
    request, limits = session.request, state.limits
    if limits.by_rejection and request.sampling.mirostat:
        return False  # it learns from its own draws only
    if request.n_beams > 1 or request.precompute or request.prompt_logprobs:
        return False
    return limits.draft_max > 0 and request.speculation.n_max != 0


def _ask(work: Work) -> Ask:
    id, limit, constraint = work.session.id, work.n_draft, work.session.constraint
    if constraint is None:
        return Ask(id, limit, n_pending=work.n_pending, seq=work.session.seq)

    def allows(tokens: Sequence[int]) -> bool:
        return constraint.n_allowed(tokens) == len(tokens)

    return Ask(id, limit, constraint.forced() if limit > 0 else (), allows, work.n_pending, work.session.seq)
