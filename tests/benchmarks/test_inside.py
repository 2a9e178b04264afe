"""A draft model inside the lead under a virtual clock, over the toy: no figure depends on the machine."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.inside import Machine, decided, fixed, plain, run
from benchmarks.texts import Text, write
from tests.benchmarks.test_clocked import GREEDY, MODEL, N_TOKENS, PROMPTS, backend
from tests.fake_backend import FakeBackend

MACHINE = Machine({1: 1000.0, 2: 1100.0}, 100.0, 0.0)


@pytest.fixture(scope="module")
def known() -> list[Text]:
    return write(FakeBackend(MODEL, n_seqs=2), PROMPTS, GREEDY, N_TOKENS)


def rates(known: list[Text], error: float, kind: Any) -> list[float]:
    draft: Any = backend(error)
    return [n / seconds for n, seconds in run(draft, known, MACHINE, kind, 1)[0].replies]


def test_plain_steps_take_what_the_curve_says(known: list[Text]):
    assert rates(known, 0.0, plain) == pytest.approx([1.0] * len(known))


def test_perfect_draft_makes_long_steps(known: list[Text]):
    assert min(rates(known, 0.0, decided)) > 2.0


def test_bad_draft_costs_less_than_fixed(known: list[Text]):
    worst = min(rates(known, 0.9, decided))
    assert worst > 0.8
    assert min(rates(known, 0.9, fixed)) < worst


def test_dear_rows_stop_several_replies(known: list[Text]):
    dear = Machine({1: 1000.0, 2: 1900.0, 4: 3600.0}, 300.0, 200.0)
    draft: Any = backend(0.0)
    alone, drafted = (run(draft, known, dear, kind, 4)[0] for kind in (plain, decided))
    assert drafted.seconds < 1.05 * alone.seconds, "what it takes to find out included"
    assert sorted(drafted.gaps)[-len(drafted.gaps) // 20] < 1.2 * sorted(alone.gaps)[-len(alone.gaps) // 20]


def test_lead_runs_every_session_count(known: list[Text]):
    draft: Any = backend(0.0)
    alone, together = run(draft, known, MACHINE, plain, 1, 2)
    assert len(alone.replies) == len(together.replies) == len(known)
    assert together.seconds < 0.7 * alone.seconds
    assert run(draft, known, MACHINE, decided, 1, 1)[1].seconds < 0.5 * alone.seconds
