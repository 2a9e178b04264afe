"""Make room for a reply that outgrows its context: drop tokens in the middle, and update the KV cache.

If the backend can shift, the cells after the gap are moved. This costs nothing, but the moved cells still
depend on the dropped tokens. Otherwise the remaining tokens are evaluated again. The text depends neither on
drafts nor on other sessions. Cells that another conversation shares cannot be moved, so they are first
evaluated again. A session that lost its moved cells repeats everything from its first drop (Session.rewind).
"""

from __future__ import annotations

from server.engine.sequences import Sequences
from server.engine.session import Session
from server.llama.backend import Backend


def shift(session: Session, sequences: Sequences, backend: Backend) -> bool:
    """Make room in a full session, which has one pending token; return True if it has room now.

    If False, more of its tokens are pending and must be evaluated again before the next call. Sets n_kv and
    n_intact.
    """
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
