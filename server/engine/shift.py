"""A reply that outgrows the context: tokens in its middle are dropped, and the KV cache follows.

Where the backend can shift, the cells after the gap are moved, which costs nothing; they still depend on the
dropped tokens. Elsewhere the remaining tokens are evaluated anew. The text depends neither on drafts nor on
other sessions: cells that another conversation shares cannot be moved and are evaluated again before, and a
session that lost its moved cells repeats everything from its first drop (Session.rewind).
"""

from __future__ import annotations

from server.engine.sequences import Sequences
from server.engine.session import Session
from server.llama.backend import Backend
from server.sampling.noise import mix
from server.sampling.params import SamplingParams


def shift(session: Session, sequences: Sequences, backend: Backend) -> bool:
    """Make room in a full session with one token pending. Returns whether it has room now; if not, tokens are
    pending that have to be evaluated again before the next try. Sets n_kv and n_intact."""
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


def for_drafters(sampling: SamplingParams, n_dropped: int) -> SamplingParams:
    """Parameters whose noise at a position of the remaining tokens is that of the whole text's position:
    drafters count the tokens they are told. Inverts how noise.py makes a key of seed and position."""
    if not n_dropped:
        return sampling
    return sampling.reseeded(_unmix(mix(sampling.seed) + _GOLDEN * n_dropped))


_GOLDEN = 0x9E3779B97F4A7C15
_A_INVERSE = pow(0xBF58476D1CE4E5B9, -1, 1 << 64)
_B_INVERSE = pow(0x94D049BB133111EB, -1, 1 << 64)


def _unmix(value: int) -> int:
    """The value that `mix` makes this of: its steps are bijections."""
    value = _unshift(value % (1 << 64), 31) * _B_INVERSE % (1 << 64)
    value = _unshift(value, 27) * _A_INVERSE % (1 << 64)
    return _unshift(value, 30)


def _unshift(value: int, n: int) -> int:
    """The x of which value = x ^ (x >> n), for 22 <= n."""
    return value ^ (value >> n) ^ (value >> 2 * n)
