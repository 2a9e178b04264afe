"""A draft model inside the lead under a virtual clock, over the toy: no figure depends on the machine."""

from __future__ import annotations

import random
from typing import Any

import pytest

from benchmarks.inside import MACHINES, Machine, decided, fixed, looked_up, plain, run
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


def repeating(seed: int) -> Text:
    """Return a text of 600 tokens in which 30 earlier ones come again after every 150 new ones."""
    rng = random.Random(seed)
    tokens: list[int] = []
    while len(tokens) < 600:
        tokens += [rng.randrange(32, 250) for _ in range(150)]
        at = rng.randrange(len(tokens) - 60)
        tokens += tokens[at : at + 30]
    return Text(tuple(tokens), 60, GREEDY)


def test_rare_repeats_keep_lookups_awake():
    """A sixth of the text can be looked up; lookups that rest after 33 plain steps gain half as much."""
    draft: Any = backend(0.0)
    texts, machine = [repeating(seed) for seed in range(6)], MACHINES["400M BF16"]
    alone, looked = (run(draft, texts, machine, kind, 1)[0] for kind in (plain, looked_up))
    assert looked.seconds < alone.seconds / 1.09
