"""A reply that outgrows the context: tokens in its middle are dropped, and the KV cache follows.

Where the backend can, the cells after the gap are moved, which costs nothing; they keep what they have seen
of the dropped tokens. Else the remaining tokens are evaluated anew. Which of the two depends on the backend
alone, and whatever moved cells depend on is repeated in the same order: cells that another conversation
shares, and so cannot be moved, are evaluated again before, and a session that lost its moved cells goes back
to its first drop (Session.rewind). So the text depends neither on drafts nor on other sessions here either.
"""

from __future__ import annotations

from server.engine.sequences import Sequences
from server.engine.session import Session
from server.llama.backend import Backend


def shift(session: Session, sequences: Sequences, backend: Backend) -> bool:
    """Make room in a full session with one token pending. Returns whether it has room now; if not, some of
    its tokens are pending again, and after them it is as full as before. n_kv and n_intact follow."""
    start, end = session.next_drop()
    if not (backend.can_shift and backend.can_trim):
        session.drop(start, end)
        session.n_kv = start if backend.can_trim and backend.intact(session.seq, start) else 0
        sequences.trim(session.seq, session.n_kv)
    elif not sequences.owns(session.seq, end):
        session.n_kv = end if backend.intact(session.seq, end) else 0
        sequences.trim(session.seq, session.n_kv)
        return False
    else:
        sequences.shift(session.seq, start, end)
        session.drop(start, end)
        session.n_kv -= end - start
        session.n_intact = start
    return True
