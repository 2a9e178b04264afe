"""Whatever happens: the budgets hold, and no state is mistaken for another."""

from __future__ import annotations

import gc
import logging
import random
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.cache.catalogue import Found
from tests.checks import check_snapshots
from tests.server.cache.lead import Ids, Lead, Make, damage, leads, state_of

TOKENS = st.lists(st.integers(0, 2), min_size=1, max_size=6).map(tuple)
SALTS = st.sampled_from(["", "a"])
N_CONVERSATIONS = 400  # the disk holds 50 of them, host memory 8


@given(st.lists(st.tuples(TOKENS, SALTS), max_size=30), TOKENS, SALTS)
def test_match_equals_brute_force(puts: list[tuple[Ids, str]], wanted: Ids, salt: str):
    with leads() as make:
        lead = make()
        for tokens, of in puts:
            lead.put(*tokens, salt=of)
        check_snapshots(lead.snapshots)
        best = max((shared(tokens, wanted) for tokens, of in puts if of == salt), default=0)
        found = lead.match(*wanted, salt=salt)
        assert (found.length if found else 0) == best
        held = {t for t, of in puts if of == salt}
        longest = {t for t in held if not any(o != t and o[: len(t)] == t for o in held)}
        if found:
            assert lead.snapshots.get(found.key) in {
                state_of(t, salt) for t in longest if shared(t, wanted) == best
            }


def shared(a: Ids, b: Ids) -> int:
    n = 0
    while n < min(len(a), len(b)) and a[n] == b[n]:
        n += 1
    return n


EVENTS = st.one_of(
    st.tuples(st.sampled_from(["put", "put", "get", "match", "fetch"]), st.integers(0, 1), TOKENS, SALTS),
    st.tuples(st.sampled_from(["flush", "damage", "delete"]), st.integers(0, 1), st.just((1,)), st.just("")),
)


@settings(max_examples=60)
@given(st.lists(EVENTS, max_size=40), st.integers(0, 500), st.integers(0, 1200), st.integers(0, 300))
def test_budgets_hold_under_random_faults(
    tmp_path_factory: pytest.TempPathFactory,
    events: list[tuple[str, int, Ids, str]],
    memory: int,
    disk: int,
    backlog: int,
):
    """Two leads share a directory that also loses and damages files."""
    path = tmp_path_factory.mktemp("cache")
    with leads() as make:
        pair = [make(path, memory=memory, disk=disk, backlog=backlog) for _ in range(2)]
        for what, which, tokens, salt in events:
            happen(pair[which], what, tokens, salt)
            check_snapshots(pair[which].snapshots)
        for lead in pair:
            lead.flush()
        for lead in pair:
            assert lead.tier
            lead.tier.trim()
            assert sum(path.stat().st_size for path in lead.files()) <= disk
            counters = lead.snapshots.counters()
            assert counters.waiting_bytes == 0
            assert counters.memory_bytes <= memory + 100, "one that was fetched may be there beyond it"


def happen(lead: Lead, what: str, tokens: Ids, salt: str) -> None:
    if what == "put":
        lead.put(*tokens, salt=salt)
    elif what == "flush":
        lead.flush()
    elif what in ("damage", "delete"):
        files = [path for path in lead.files() if path.suffix == ".duo"]
        for path in files[:1]:
            path.unlink(missing_ok=True) if what == "delete" else damage_if_there(path)
    else:
        found = lead.match(*tokens, salt=salt)
        if found and what == "fetch" and found.tier == "disk":
            check_state(lead.fetch(found.key), found, tokens, salt)
        elif found and what == "get":
            check_state(lead.snapshots.get(found.key), found, tokens, salt)


def damage_if_there(path: Path) -> None:
    """Replace the file by a damaged one, so that nobody reads half of it."""
    aside = path.with_suffix(".damaged")
    try:
        aside.write_bytes(path.read_bytes())
    except FileNotFoundError:
        return  # a lead was quicker
    damage(aside)
    aside.replace(path)


def check_state(data: bytes | None, found: Found, tokens: Ids, salt: str) -> None:
    """Check that the state is of a conversation that begins as the match says, or gone."""
    if data is None:
        return
    stems = [tokens[: found.length]]
    for _ in range(found.n_tokens - found.length):
        stems = [(*stem, token) for stem in stems for token in range(3)]
    assert data in {state_of(stem, salt) for stem in stems}


def allocated() -> int:
    """Return the bytes of the cache and of these tests.

    The interpreter's own tables, which double now and then, do not count.
    """
    gc.collect()
    ours = [tracemalloc.Filter(True, "*/server/cache/*")]
    return sum(trace.size for trace in tracemalloc.take_snapshot().filter_traces(ours).traces)


def test_hundreds_of_conversations_stay_bounded(make: Make, path: Path, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.WARNING)
    size, memory, disk, rng = 20_000, 160_000, 1_000_000, random.Random(7)
    lead = make(path, memory=memory, disk=disk, backlog=memory)
    traced: list[int] = []
    tracemalloc.start()
    try:
        for n in range(N_CONVERSATIONS):
            tokens = tuple(rng.randrange(500) for _ in range(200))
            lead.put(*tokens, size=size)
            lead.snapshots.flush(0)  # waits for nothing, but takes note of what has been written by now
            assert lead.snapshots.counters().memory_bytes <= 2 * memory + size
            lead.match(*tokens)
            if n % 40 == 39:
                lead.flush()
                assert sum(path.stat().st_size for path in lead.files()) <= disk
                traced.append(allocated())
    finally:
        tracemalloc.stop()
    assert max(traced[5:]) - max(traced[1:5]) < size, "no growth by even one payload"
    counters = lead.snapshots.counters()
    assert counters.disk_snapshots == len(lead.files())
    assert counters.writes + counters.lost == N_CONVERSATIONS
    assert counters.writes - counters.evicted_from_disk == counters.disk_snapshots
    assert caplog.records == []
