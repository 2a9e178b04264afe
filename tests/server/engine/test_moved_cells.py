"""Sessions beside and after one whose cells were moved: none gets cells that are not its own."""

from __future__ import annotations

from dataclasses import replace

import pytest

from server.engine.scheduler import Limits
from server.engine.session import Session
from tests.checks import check_engine
from tests.server.engine.shifting import N_CTX, N_KEEP, Following, N, alone, asked, backend
from tests.support import PROMPT, Harness, Outcome, request


@pytest.mark.parametrize("can_shift", [True, False])
def test_similar_sessions_keep_own_cells(can_shift: bool):
    long = PROMPT + tuple(b"and a drafter it had, and on it went")
    asks = [replace(request((*long[:80], i), max_tokens=150), n_keep=0) for i in range(3)]
    asks.append(request(long[:82], max_tokens=8))
    expected = [alone(ask, can_shift=can_shift) for ask in asks]
    harness = Harness(backend(can_shift=can_shift), limits=Limits(n_batch=64, n_chunk=64))
    assert [outcome.tokens for outcome in harness.run(*asks)] == expected
    assert sum(outcome.started.n_cached > 44 for outcome in harness.outcomes.values()) >= 2
    again = harness.run(*asks)
    assert [outcome.tokens for outcome in again] == expected


@pytest.mark.parametrize("can_shift", [True, False])
@pytest.mark.parametrize("drafted", [False, True])
def test_preempted_session_repeats_its_shifts(can_shift: bool, drafted: bool):
    """The second session outgrows the context first; then the first one needs its cells."""
    asks = [asked(first=1, temperature=1.0), request((*PROMPT, *PROMPT[:31]), temperature=1.0, max_tokens=N)]
    asks[1] = replace(asks[1], n_keep=N_KEEP)
    expected = [alone(ask, can_shift=can_shift) for ask in asks]
    texts = [(*ask.prompt, *text) for ask, text in zip(asks, expected, strict=True)]
    harness = Harness(
        backend(can_shift=can_shift, n_cells=150),
        Following(texts) if drafted else None,
        limits=Limits(n_batch=64, n_chunk=8),
    )
    harness.run(replace(asks[1], max_tokens=1))  # its prompt is there already
    first, second = harness.submit(*asks)
    pushed_out_at: list[int] = []
    while harness.engine.step():
        if harness.engine.n_waiting:
            pushed_out_at.append(len(harness.outcomes[second].tokens))
    check_engine(harness.engine)
    assert [harness.outcomes[id].tokens for id in (first, second)] == expected
    assert any(n > N_CTX - len(asks[1].prompt) for n in pushed_out_at), pushed_out_at


def window(outcome: Outcome) -> tuple[int, ...]:
    """Return the tokens that remain after the first shift, and those that followed."""
    session = Session(1, asked(), N_CTX)
    n = N_CTX - len(PROMPT)
    session.tokens += outcome.tokens[:n]
    session.drop(*session.next_drop())
    return (*session.tokens, *outcome.tokens[n:])


@pytest.mark.parametrize("can_shift", [True, False])
def test_moved_cells_are_not_reused_afterwards(can_shift: bool):
    harness = Harness(backend(can_shift=can_shift))
    [first] = harness.run(asked(n=N_CTX - len(PROMPT) + 5))
    turn = (*window(first), 9)
    [continued] = harness.run(request(turn, max_tokens=3))
    assert continued.started.n_cached == (N_KEEP if can_shift else len(turn) - 2)
    assert continued.tokens == alone(request(turn, max_tokens=3))


@pytest.mark.parametrize("can_shift", [True, False])
def test_neighbour_keeps_moved_cells(can_shift: bool):
    harness = Harness(backend(can_shift=can_shift))
    [id] = harness.submit(asked())
    while len(harness.outcomes[id].tokens) < N_CTX - len(PROMPT) + 5:
        harness.engine.step()
    turn = (*window(harness.outcomes[id]), 9)
    [beside] = harness.submit(request(turn, max_tokens=3))
    while harness.engine.step():
        pass
    check_engine(harness.engine)
    assert harness.outcomes[beside].started.n_cached == (N_KEEP if can_shift else len(turn) - 2)
    assert harness.outcomes[beside].tokens == alone(request(turn, max_tokens=3))
    assert harness.outcomes[id].tokens == alone(asked(), can_shift=can_shift)


@pytest.mark.parametrize("can_shift", [True, False])
@pytest.mark.parametrize("keep", [None, 0, 60, 118])
def test_cancel_after_shift_caches_correctly(can_shift: bool, keep: int | None):
    harness = Harness(backend(can_shift=can_shift))
    [id] = harness.submit(asked(n=N))
    while len(harness.outcomes[id].tokens) < 120:
        harness.engine.step()
    harness.engine.cancel(id, keep)
    check_engine(harness.engine)
    outcome: Outcome = harness.outcomes[id]
    assert outcome.finished.stats.n_predicted == 120
    whole = PROMPT + outcome.tokens
    for prompt in (whole[:80], (*PROMPT[:N_KEEP], *whole[-60:]), (*PROMPT, 1)):
        ask = request(prompt, max_tokens=5)
        assert harness.run(ask)[0].tokens == alone(ask)
