"""What must hold of the engine and of its books. Each function raises AssertionError if it does not."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

from collections.abc import Hashable
from typing import TypeVar

from server.cache.catalogue import Catalogue
from server.cache.prefix import PrefixCache
from server.cache.radix import RadixIndex
from server.cache.snapshots import Snapshots
from server.engine.engine import Engine
from server.engine.proposer import Proposer
from server.speculation.speculator import Speculator
from server.text.transcript import Transcript

K = TypeVar("K", bound=Hashable)


def check_engine(engine: Engine) -> None:
    """Check that no session is left, and that the KV cache holds what is known of it."""
    state = engine._state
    sequences, backend = state.sequences, state.backend
    assert not state.active, "active sessions"
    assert not state.waiting, "waiting sessions"
    assert state.cache.n_busy == 0, "busy sequences"
    for seq, resting in state.cache.idle_contents().items():
        assert backend.length(seq) == len(resting.tokens), f"other cells than known in {seq}"
    for shadow in range(sequences.n_main, sequences.n_main * sequences.most_leaves):
        assert not backend.length(shadow), f"cells in the shadow sequence {shadow}"
    assert not state.searches._searches, "beam searches"
    assert is_idle(state.proposer), "open sessions at the proposer"


def is_idle(proposer: Proposer) -> bool:
    """Return True if no session is open, neither here nor at a drafter."""
    if isinstance(proposer, Speculator):
        remote = proposer._remote
        return not proposer._sessions and not (remote and (remote._sessions or remote.drafting))
    idle = getattr(proposer, "idle", None)  # of one that a test made
    return idle is None or idle()


def check_prefixes(cache: PrefixCache) -> None:
    """Check that the indexes hold what the sequences do."""
    for index in (cache._idle, cache._checkpoints, cache._held):
        check_radix(index)
    for seq, resident in enumerate(cache._residents):
        held = resident.busy or bool(resident.tokens)
        assert (seq in cache._held) == held, "a sequence that shares what it does not hold"
        assert seq not in cache._checkpoints or seq in cache._idle, "a mark in a sequence that is not idle"
        assert (seq in cache._idle) == bool(resident.tokens), "a conversation that cannot be found"
        assert not (resident.busy and resident.tokens), "a busy sequence to reuse"


def check_snapshots(snapshots: Snapshots) -> None:
    """Check that the books of the tiers agree."""
    snapshots._run_reports()
    catalogue = snapshots._catalogue
    check_catalogue(catalogue)
    staying = catalogue.held_bytes - catalogue.leaving_bytes
    excess = [entry.n_bytes for entry in catalogue.held.values() if entry.arrived]
    assert staying <= snapshots.memory_bytes + max(excess, default=0), "over the budget of memory"


def check_catalogue(catalogue: Catalogue) -> None:
    """Check that all maps agree."""
    every, warm = catalogue._all, catalogue._warm
    check_radix(every)
    check_radix(warm)
    assert len(every._ends) == len(catalogue.entries), "an entry that is not found"
    assert all(key in warm for key in catalogue.held), "a payload that is not found"
    assert len(warm._ends) == len(catalogue.held), "a payload that is found but gone"
    for key, entry in catalogue.entries.items():
        assert (entry.data is not None) == (key in catalogue.held), "a payload that is not counted"
        assert entry.data is not None or not entry.leaving | entry.arrived | entry.writing, "nothing to write"
        assert entry.data is not None or entry.on_disk or entry.loading, "an entry of nothing"


def check_transcript(transcript: Transcript) -> None:
    """Check that conversations are in order, each is found by its use, and the bounds hold."""
    kept = [conversation for held in transcript._by_salt.values() for conversation in held]
    assert len(kept) == len(transcript._by_use) <= transcript._most_conversations
    assert set(kept) == set(transcript._by_use)
    assert sum(len(one.tokens) for one in kept) == transcript.n_tokens <= transcript._most_tokens
    for held in transcript._by_salt.values():
        texts = [one.text for one in held]
        assert held
        assert texts == sorted(set(texts))


def check_radix(index: RadixIndex[K]) -> int:
    """Check that all trees are minimal and all counts right, and return the number of keys."""
    n_keys = 0
    for root in index._roots.values():
        assert root.n_keys, "an empty tree"
        nodes = [root]
        for node in nodes:  # which grows meanwhile
            nodes += node.children.values()
            below = sum(child.n_keys for child in node.children.values())
            assert node.n_keys == len(node.here) + below, "a wrong count"
            assert node.latest == node.newest(), "a wrong stamp"
            assert node is root or node.here or len(node.children) > 1, "a superfluous node"
            for first, child in node.children.items():
                assert child.parent is node, "a wrong parent"
                assert child.edge[0] == first, "a wrong edge"
                assert child.depth == node.depth + len(child.edge), "a wrong depth"
            for key, stamp in node.here.items():
                assert index._ends[key] is node, "a key in two places"
                assert index._keys[stamp] == key, "a wrong stamp"
        n_keys += root.n_keys
    assert n_keys == len(index._ends) == len(index._salts) == len(index._keys), "a lost key"
    return n_keys
