"""The real engine with the real proposer under a virtual clock: as fast as the formulas say."""

from __future__ import annotations

import itertools
import random

import pytest

from tests.benchmarks import virtual
from tests.benchmarks.virtual import BLOCK, K_MAX, gaps, measured
from tests.formulas import Scheme, speedup, staircase

GRID = [
    *itertools.product((0.5, 0.8), (2.0, 8.0), (0.0, 0.5, 2.0)),
    *itertools.product((0.9, 0.95), (4.0, 20.0), (0.0, 1.0)),
]


@pytest.mark.parametrize(("a", "r", "latency"), GRID)
def test_within_2_percent_of_the_formula(a: float, r: float, latency: float):
    scheme = Scheme(a, r, latency, k_max=K_MAX)
    assert measured(scheme) == pytest.approx(speedup(scheme), rel=0.02)


@pytest.mark.parametrize(("latency", "k_max"), [(0.0, 8), (0.3, 8), (0.0, 3)])
def test_a_cost_curve_and_a_bound(latency: float, k_max: int):
    v = staircase({0: 1.0, 1: 1.2, 3: 1.3, 7: 1.6, 15: 2.1})
    scheme = Scheme(0.8, 8, latency, v=v, k_max=k_max)
    assert measured(scheme) == pytest.approx(speedup(scheme), rel=0.05)


def test_without_drafts_a_token_takes_tt():
    base = virtual.plain(200)
    assert len(base.tokens) == len(virtual.PROMPT) + 200
    assert base.seconds == pytest.approx(199 * virtual.TT_US / 1e6)
    assert base.n_drafted == 0


def test_perfect_drafter_is_accepted_whole():
    base = virtual.plain(400)
    outcome = virtual.drafted(Scheme(1 - 1e-9, 4, k_max=K_MAX), base.tokens)
    assert outcome.tokens == base.tokens
    assert outcome.n_accepted >= 0.97 * outcome.n_drafted
    assert base.seconds / outcome.seconds == pytest.approx(4, rel=0.05)


def test_wrong_drafter_changes_its_share():
    base = virtual.plain(200)
    outcome = virtual.drafted(Scheme(1e-9, 4, k_max=K_MAX), base.tokens)
    assert outcome.tokens == base.tokens
    assert outcome.n_accepted == 0
    assert outcome.seconds == base.seconds


@pytest.mark.parametrize("a", [0.2, 0.5, 0.9])
def test_undrafted_time_comes_from_drafted(a: float):
    base = virtual.plain(1000)
    assert base.undrafted_s == pytest.approx(base.seconds)
    v = staircase({0: 1.0, 1: 1.2, 3: 1.3, 7: 1.6, 15: 2.1})
    outcome = virtual.drafted(Scheme(a, 8, v=v, k_max=8), base.tokens)
    assert outcome.undrafted_s == pytest.approx(base.seconds, rel=0.02)
    if a < 0.5:
        assert outcome.seconds < 1.02 * base.seconds, "a drafter that is hardly ever right costs little"
    else:
        assert outcome.undrafted_s != pytest.approx(outcome.seconds, rel=0.03)


def test_mistakes_have_their_share():
    start = len(virtual.PROMPT)
    drafter = virtual.Replay(Scheme(0.8, 4), [7] * (start + 2000), seed=1)
    places = [p for p in range(start + 2000) if drafter.token(0, p) != 7]
    assert places == sorted(drafter.mistakes)
    assert places[0] >= start
    assert len(places) == pytest.approx(400, rel=0.05)


@pytest.mark.parametrize("a", [0.5, 0.8, 0.95])
def test_gaps_are_geometrically_distributed(a: float):
    block = list(itertools.islice(gaps(a, random.Random(1)), BLOCK))
    mean = sum(block) / BLOCK
    assert mean == pytest.approx(a / (1 - a), abs=1 / BLOCK)
    assert block.count(0) / BLOCK == pytest.approx(1 - a, abs=1 / BLOCK)
    assert sum((gap - mean) ** 2 for gap in block) / BLOCK == pytest.approx(a / (1 - a) ** 2, rel=0.1)


def test_the_order_depends_on_the_seed_only():
    first, again, other = (list(itertools.islice(gaps(0.8, random.Random(s)), 50)) for s in (1, 1, 2))
    assert first == again != other


def test_clock_delivers_in_order():
    world, seen = virtual.World(), list[tuple[str, int]]()

    def note(what: str) -> None:
        seen.append((what, world.now_us))

    world.after(30, lambda: note("late"))
    world.after(10, lambda: (note("early"), world.after(5, lambda: note("answer")))[0])
    world.advance(20)
    assert seen == [("early", 10), ("answer", 15)]
    world.advance(10)
    assert seen[-1] == ("late", 30)
    assert world.clock() == pytest.approx(30e-6)
