"""Open sessions at the proposer, and ask it for guesses."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import overload

from server.engine.proposer import NOTHING, Ask, OpenedSession, Plan, Upcoming
from server.engine.scheduler import Work
from server.engine.session import Session
from server.engine.shift import shift
from server.engine.state import EngineState
from server.llama.backend import PICTURE_IDS, blank_of

logger = logging.getLogger("duo.engine")


class Blanked(Sequence[int]):
    """The growing tokens of a session, with positions of pictures replaced by a fixed token.

    Proposers cannot read pictures. The number of tokens is kept, so that positions do not change.
    """

    def __init__(self, tokens: list[int], blank: int) -> None:
        """Wrap the list; `blank` is the token that replaces a picture's positions."""
        self._tokens = tokens
        self._blank = blank

    def __len__(self) -> int:
        return len(self._tokens)

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> list[int]: ...
    def __getitem__(self, index: int | slice) -> int | list[int]:
        if isinstance(index, slice):
            return [token if token < PICTURE_IDS else self._blank for token in self._tokens[index]]
        token = self._tokens[index]
        return token if token < PICTURE_IDS else self._blank


def open_session(state: EngineState, session: Session) -> None:
    """Open a session at the proposer if it may draft. If that raises, the session goes on without drafts."""
    if not _may_draft(state, session):
        return
    sampling, bounds = session.request.sampling.mirrored(), state.limits.bounds(session)
    tokens: Sequence[int] = session.tokens
    if session.request.pictures:
        tokens = Blanked(session.tokens, blank_of(state.backend.vocab))
    try:
        held = partial(_evaluated, session)
        state.proposer.open(OpenedSession(session.id, tokens, sampling, bounds, session.n_dropped, held))
        session.drafts = True
    except Exception:
        logger.exception("session %d gets no drafts", session.id)
        session.drafts = False
        with suppress(Exception):
            state.proposer.close(session.id, keep=False)


def _evaluated(session: Session) -> tuple[int, int]:
    return session.seq, session.n_kv


def shift_full(state: EngineState) -> None:
    """Shift the context of sessions that have filled it, and reopen these sessions at the proposer."""
    for session in state.active:
        if not session.is_full or not session.decodes:
            continue
        reopen = session.drafts and not session.is_rewound
        if shift(session, state.sequences, state.backend) and reopen:
            state.proposer.close(session.id, keep=True)
            open_session(state, session)


def draft(state: EngineState, works: Sequence[Work], n_used: int) -> Plan:
    """Ask the proposer for the plan of this step.

    Args:
        state: The sessions, and what they run on.
        works: The step's work, one for each of its sessions; none if the engine is idle.
        n_used: Number of KV cells in use.

    Returns:
        A plan with one proposal per work: NOTHING for sessions that draw no token.
    """
    drafting = [work for work in works if work.completes and work.session.drafts]
    has_grammar = False
    for work in drafting:
        if work.session.constraint is not None:
            has_grammar = True
    step = Upcoming(
        min(state.n_slots, len(state.active) + len(state.waiting)),
        len(drafting),
        sum([work.n_rows for work in works]),
        n_used,
        has_grammar,
        lambda: [_ask_for(work) for work in drafting],
        lambda: _may_pad(state, works),
        lambda: [work.session.id for work in works if not work.session.decodes],
    )
    plan = state.proposer.plan(step)
    if not plan.proposals:
        plan.proposals = [NOTHING] * len(works)
    elif len(drafting) != len(works):
        given = {work.session.id: one for work, one in zip(drafting, plan.proposals, strict=True)}
        plan.proposals = [given.get(work.session.id, NOTHING) for work in works]
    return plan


def _may_pad(state: EngineState, works: Sequence[Work]) -> bool:
    """Return True if the step may have padding rows.

    All its rows must belong to decoding sessions without beams, and neither limits.again nor limits.streams
    may be set. Width-stable sessions, whose steps all have equal numbers of rows, are padded in build().
    """
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
        return False  # a mirostat sampler learns from its own draws only
    if request.n_beams > 1 or request.precompute or request.prompt_logprobs:
        return False
    return limits.draft_max > 0 and request.speculation.n_max != 0


def _ask_for(work: Work) -> Ask:
    """Return the request for guesses of one session."""
    id, limit, constraint = work.session.id, work.n_draft, work.session.constraint
    if constraint is None:
        return Ask(id, limit, n_pending=work.n_pending, seq=work.session.seq)

    def allows(tokens: Sequence[int]) -> bool:
        return constraint.n_allowed(tokens) == len(tokens)

    return Ask(id, limit, constraint.forced() if limit > 0 else (), allows, work.n_pending, work.session.seq)
