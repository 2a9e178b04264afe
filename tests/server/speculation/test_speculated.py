"""What a session's own texts guess."""

from __future__ import annotations

from server.engine.proposer import OpenedSession
from server.engine.request import Speculation
from server.sampling.params import SamplingParams
from server.speculation.hits import HitRates, SessionHitRates
from server.speculation.sources.lookup import Lookup
from server.speculation.speculated import Speculated


def test_lookup_grafts_no_unlikely_guess():
    tokens = [*range(100), 0, 1]
    session = OpenedSession(1, tokens, SamplingParams(), Speculation())
    lookup = Lookup()
    speculated = Speculated(1, session, SessionHitRates(HitRates()), lookup)
    speculated.index(len(tokens))
    assert len(lookup.guess(64)[0]) == 64
    speculated.look_up(64)
    offer = speculated.tree.offer(speculated.hits, 64, p_min=1e-9)
    assert 0 < len(speculated.tree._places) - 1 < 10  # pyright: ignore[reportPrivateUsage]
    assert offer.tokens[0] == 2


def conversation(n: int) -> Speculated:
    """Return a session of n tokens, none of which its lookup has yet."""
    session = OpenedSession(1, list(range(n)), SamplingParams(), Speculation())
    return Speculated(1, session, SessionHitRates(HitRates()), Lookup())


def test_tree_commits_lazily():
    idle, busy = conversation(9), conversation(9)
    for token in (4, 2, 7):
        idle.session.tokens.append(token)  # pyright: ignore
        busy.session.tokens.append(token)  # pyright: ignore
        assert busy.tree.position == len(busy.session.tokens)
    assert (idle.tree.position, idle.tree.chain) == (busy.tree.position, busy.tree.chain)
