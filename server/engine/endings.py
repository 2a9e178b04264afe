"""End or preempt sessions; everything that they hold is released, even if releasing one part raises."""

from __future__ import annotations

from contextlib import ExitStack

from server.engine.events import Event, Failed, Finished, FinishReason
from server.engine.session import NO_SEQ, Session
from server.engine.state import EngineState
from server.errors import DuoError


def finish(state: EngineState, session: Session, reason: FinishReason) -> None:
    """End a session whose reply is complete."""
    end(state, session, Finished(reason, session.stats(state.clock())), len(session.tokens))


def fail(state: EngineState, session: Session, error: DuoError) -> None:
    """End a session with an error; none of its tokens stay cached."""
    end(state, session, Failed(error), 0)


def cancel(state: EngineState, session: Session, keep: int | None) -> None:
    """End a session early; its reply is its first `keep` generated tokens (None: all).

    All reply tokens except the last stay cached.
    """
    n_all = len(session.tokens) if keep is None else session.n_prompt + keep - session.n_dropped
    end(state, session, Finished("cancelled", session.stats(state.clock())), n_all - 1)


def end(state: EngineState, session: Session, event: Event, n_keep: int) -> None:
    """Remove a session and emit its last event; of its first n_keep tokens, evaluated ones stay cached."""
    if session in state.active:
        state.active.remove(session)
    else:
        state.waiting.remove(session)
    n = max(0, min(session.n_reusable, n_keep))
    with ExitStack() as each:  # last in, first out; all of them, even if one raises
        each.callback(state.emit, session.id, event)
        if session.drafts:
            each.callback(state.proposer.close, session.id, keep=n > 0)
        each.callback(_release_sequences, state, session, n)


def preempt(state: EngineState, session: Session) -> None:
    """Take away an active session's cells, and put it at the front of the queue, to be evaluated again."""
    state.active.remove(session)
    try:
        _release_sequences(state, session, 0)
    finally:
        session.lose_cells()
        state.waiting.appendleft(session)


def _release_sequences(state: EngineState, session: Session, length: int) -> None:
    """Release all sequences of the session, if it has any; its first `length` tokens stay cached.

    If the sequence is longer and the backend cannot trim it, only the tokens of its turn checkpoint stay
    cached; none if these are more than `length`.
    """
    if session.seq == NO_SEQ:
        return
    marked = state.sequences.checkpoints.turn_lengths[session.seq]
    if length < session.n_kv and not state.backend.can_trim:
        length = marked if length >= marked else 0
    own, session.seq, session.n_kv = session.seq, NO_SEQ, 0
    with ExitStack() as each:  # all of them, even if one raises
        for seq in state.searches.end(session):
            each.callback(_cut_sequence, state, seq, [])
        each.callback(_cut_sequence, state, own, session.tokens[:length])


def _cut_sequence(state: EngineState, seq: int, tokens: list[int]) -> None:
    """Trim a sequence to its first tokens, `tokens`, and count it as idle; if that raises, as free."""
    held = list[int]()
    try:
        state.sequences.trim(seq, len(tokens))
        held = tokens
    finally:
        state.cache.release(
            seq, held, checkpoint=state.sequences.checkpoints.turn_lengths[seq] if held else 0
        )
