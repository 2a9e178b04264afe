"""How prompts are cut."""

from __future__ import annotations

import pytest

from server.engine.request import GenerationRequest
from server.engine.scheduler import SHORT, Limits, plan
from server.engine.session import Session
from server.sampling.params import SamplingParams

LIMITS = Limits(n_batch=512)


def cuts(n_prompt: int, limits: Limits = LIMITS) -> list[int]:
    """Rows of the steps that a prompt takes, alone."""
    session, rows = Session(1, GenerationRequest([1] * n_prompt, SamplingParams(), 8), 1 << 16), list[int]()
    while True:
        [work] = plan([session], limits)
        rows.append(work.n_pending)
        if work.completes:
            return rows
        session.evaluated(work.n_pending)


@pytest.mark.parametrize(
    ("n_prompt", "expected"),
    [
        (26, [26]),
        (512, [512]),
        (513, [448, 65]),
        (575, [448, 127]),
        (576, [512, 64]),
        (1031, [512, 448, 71]),
        (3600, [512] * 6 + [448, 80]),
    ],
)
def test_no_short_end_is_left(n_prompt: int, expected: list[int]):
    assert cuts(n_prompt) == expected


def test_a_prompt_is_cut_into_as_few_steps_as_without_that():
    for n_prompt in range(2, 3000):
        rows = cuts(n_prompt)
        assert sum(rows) == n_prompt
        assert max(rows) <= 512
        assert len(rows) == -(-n_prompt // 512)
        assert n_prompt < SHORT or min(rows) >= SHORT


def test_small_batches_are_as_large_as_they_can_be():
    assert cuts(100, Limits(n_batch=32)) == [32, 32, 32, 4]
    for n_batch in (65, 80, 100, 127, 128, 129):
        for n_prompt in range(2, 600):
            rows = cuts(n_prompt, Limits(n_batch=n_batch))
            assert len(rows) == -(-n_prompt // n_batch)
            assert sum(rows) == n_prompt
