"""How prompts are cut."""

from __future__ import annotations

import pytest

from server.engine.request import GenerationRequest
from server.engine.scheduler import Limits, plan
from server.engine.session import Session
from server.sampling.params import SamplingParams

LIMITS = Limits(n_batch=512)


def prefilling(id: int, n_prompt: int) -> Session:
    return Session(id, GenerationRequest([1] * n_prompt, SamplingParams(), 8), 1 << 16)


def rows_of_step(sessions: list[Session]) -> list[int]:
    """Return each session's prompt rows in the next step, which is then evaluated."""
    works = {work.session.id: work for work in plan(sessions, LIMITS)}
    for work in works.values():
        work.session.evaluated(work.n_pending)
    return [works[session.id].n_pending if session.id in works else 0 for session in sessions]


def cuts(n_prompt: int, limits: Limits = LIMITS) -> list[int]:
    """Return the rows of the steps that a prompt takes alone."""
    session, rows = prefilling(1, n_prompt), list[int]()
    while True:
        [work] = plan([session], limits)
        rows.append(work.n_pending)
        if work.completes:
            return rows
        session.evaluated(work.n_pending)


@pytest.mark.parametrize(("n_prompt", "expected"), [(26, [26]), (512, [512]), (1031, [512, 512, 7])])
def test_a_prompt_is_cut_into_whole_batches(n_prompt: int, expected: list[int]):
    assert cuts(n_prompt) == expected


def test_small_batches_stay_full():
    assert cuts(100, Limits(n_batch=32)) == [32, 32, 32, 4]
    for n_batch in (65, 80, 100, 127, 128, 129):
        for n_prompt in range(2, 600):
            rows = cuts(n_prompt, Limits(n_batch=n_batch))
            assert len(rows) == -(-n_prompt // n_batch)
            assert sum(rows) == n_prompt


def test_short_prompt_joins_long_one():
    assert rows_of_step([prefilling(1, 3500), prefilling(2, 30)]) == [512 - 30, 30]


def test_first_prompt_gets_half_rows():
    sessions = [prefilling(1, 3500), prefilling(2, 2000), prefilling(3, 200), prefilling(4, 100)]
    assert rows_of_step(sessions) == [256, 0, 156, 100]
    assert rows_of_step(sessions[:3]) == [256, 212, 44]


def test_short_prompts_delay_long_one_little():
    long, steps = prefilling(0, 3500), 0
    while long.n_pending:
        rows_of_step([long, *(prefilling(i, 90) for i in (1, 2, 3))])
        steps += 1
    assert steps == -(-3500 // 256)


def test_separate_caches_keep_row_order():
    sessions = [prefilling(id, 1) for id in range(4)]
    for session, seq in zip(sessions, (2, 0, 3, 1), strict=True):
        session.seq = seq
    works = plan(sessions, Limits(streams=True))
    assert [work.session.seq for work in works] == [0, 1, 2, 3]
    assert [work.session.seq for work in plan(sessions, LIMITS)] == [2, 0, 3, 1]
