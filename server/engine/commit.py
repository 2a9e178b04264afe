"""What the rows of a step commit: drawn, verified, told to the proposer and to the caller."""

from __future__ import annotations

from server.engine import endings
from server.engine.decide import committed_event, decide, logprobs_of
from server.engine.proposer import Proposal
from server.engine.scheduler import Work
from server.engine.sequences import RowLayout
from server.engine.session import Session
from server.engine.state import EngineState
from server.errors import DuoError
from server.llama.backend import Logits


def commit(
    state: EngineState, work: Work, proposal: Proposal, layout: RowLayout, logits: Logits, at: int
) -> int:
    """Commit what one session's rows say, the first of which is logits[at]; returns where the next session's
    begin. A session that fails, at a grammar's limit say, ends."""
    session = work.session
    if not work.completes:
        session.evaluated(work.n_pending)
        if session.n_kv == session.mark_at:
            state.sequences.checkpoints.mark(session.seq, session.n_kv)
        return at
    end = at + session.n_rows + len(proposal) + layout.n_pad
    try:
        if session.request.n_beams > 1:
            _advance(state, session, logits[at:end])
        else:
            _verify(state, work, proposal, layout, logits[at:end])
    except DuoError as error:
        endings.fail(state, session, error)
    return end


def _verify(state: EngineState, work: Work, proposal: Proposal, layout: RowLayout, rows: Logits) -> None:
    """rows: logits after the last committed token, after each node of the proposal, and of padding."""
    session = work.session
    verdict = decide(session, proposal, rows, by_rejection=state.limits.by_rejection)
    if len(verdict.nodes) < len(proposal) or layout.n_pad or layout.n_shadows:
        state.sequences.settle(session, layout, verdict.nodes)
    else:
        session.evaluated(work.n_pending + len(verdict.nodes))
    session.commit(verdict, proposal, state.clock())
    if session.drafts:
        state.proposer.committed(session.id, len(verdict.tokens), proposal, verdict.nodes)
    logprobs = logprobs_of(session.request.n_logprobs, verdict, rows)
    state.emit(session.id, committed_event(verdict, proposal, logprobs))
    if reason := session.end_reason():
        endings.finish(state, session, reason)


def _advance(state: EngineState, session: Session, rows: Logits) -> None:
    """rows: logits after each beam of the session's search."""
    advance = state.searches.advance(session, rows, state.clock())
    if advance.committed:
        state.emit(session.id, advance.committed)
    if advance.reason:
        endings.finish(state, session, advance.reason)
