"""A draft model inside the lead under a virtual clock, over the toy: no figure depends on the machine."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.inside import decided, fixed, plain, run
from benchmarks.temperature import Text, write
from tests.benchmarks.test_clocked import GREEDY, MODEL, N_TOKENS, PROMPTS, backend
from tests.fake_backend import FakeBackend

TD_S = 0.1


@pytest.fixture(scope="module")
def known() -> list[Text]:
    return write(FakeBackend(MODEL, n_seqs=2), PROMPTS, GREEDY, N_TOKENS)


def step_s(n_rows: int) -> float:
    return 1.0 + 0.1 * (n_rows - 1)


def rates(known: list[Text], error: float, kind: Any) -> list[float]:
    draft: Any = backend(error)
    return [n / seconds for n, seconds in run(draft, known, step_s, TD_S, kind)]


def test_plain_steps_take_what_the_curve_says(known: list[Text]):
    assert rates(known, 0.0, plain) == pytest.approx([1.0] * len(known))


def test_a_draft_that_is_always_right_makes_steps_long(known: list[Text]):
    assert min(rates(known, 0.0, decided)) > 2.0


def test_a_bad_draft_costs_less_where_duo_decides_than_by_a_fixed_rule(known: list[Text]):
    worst = min(rates(known, 0.9, decided))
    assert worst > 0.8
    assert min(rates(known, 0.9, fixed)) < worst
