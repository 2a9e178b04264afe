"""The real engine with the real proposer under a virtual clock: as fast as the formulas say."""

from __future__ import annotations

import itertools
from functools import cache
from random import Random

import pytest

from benchmarks import grid, sweep, virtual
from benchmarks.formulas import asynchronous, staircase
from benchmarks.renewal import Scheme, speedup
from benchmarks.replay import Mistakes

GRID = [
    *itertools.product((0.5, 0.8), (2.0, 8.0), (0.0, 0.5, 2.0), (0.0, 0.8)),
    *itertools.product((0.95,), (4.0, 20.0), (0.0, 1.0), (0.0, 0.5, 1.0)),
    (0.5, 20.0, 0.0, 1.0),
    (0.8, 12.0, 1.0, 1.0),
    (0.9, 20.0, 2.0, 1.0),  # the largest messages
]


plain = cache(virtual.plain)


def measured(scheme: Scheme) -> float:
    return virtual.speedup(scheme, plain(grid.n_tokens(scheme.a)))


@pytest.mark.parametrize(("a", "r", "latency", "h"), GRID)
def test_within_5_percent_of_the_formula(a: float, r: float, latency: float, h: float):
    scheme = Scheme(a, r, latency, h, k_max=grid.K_MAX)
    assert measured(scheme) == pytest.approx(speedup(scheme), rel=0.05)


@pytest.mark.parametrize(("r", "h"), [(2.0, 0.0), (8.0, 0.0), (8.0, 0.8), (20.0, 1.0)])
def test_within_5_percent_of_the_closed_formula(r: float, h: float):
    assert measured(Scheme(0.8, r, h=h, k_max=grid.K_MAX)) == pytest.approx(asynchronous(0.8, r, h), rel=0.05)


@pytest.mark.parametrize(("latency", "h", "k_max"), [(0.0, 0.0, 8), (0.3, 0.5, 8), (0.0, 1.0, 3)])
def test_a_cost_curve_and_a_bound(latency: float, h: float, k_max: int):
    v = staircase({0: 1.0, 1: 1.2, 3: 1.3, 7: 1.6, 15: 2.1})
    scheme = Scheme(0.8, 8, latency, h, v, k_max)
    assert measured(scheme) == pytest.approx(speedup(scheme), rel=0.05)


def test_without_drafts_a_token_takes_tt():
    base = virtual.plain(200)
    assert len(base.tokens) == len(virtual.PROMPT) + 200
    assert base.seconds == pytest.approx(199 * virtual.TT_US / 1e6)
    assert base.n_drafted == 0


def test_a_drafter_that_is_always_right_is_accepted_whole():
    base = virtual.plain(400)
    outcome = virtual.drafted(Scheme(1 - 1e-9, 4, k_max=grid.K_MAX), base.tokens)
    assert outcome.tokens == base.tokens
    assert outcome.n_accepted >= 0.97 * outcome.n_drafted
    assert base.seconds / outcome.seconds == pytest.approx(4, rel=0.05)


def test_a_drafter_that_is_always_wrong_changes_nothing_but_its_share():
    base = plain(200)
    outcome = virtual.drafted(Scheme(1e-9, 4, k_max=grid.K_MAX), base.tokens)
    assert outcome.tokens == base.tokens
    assert outcome.n_accepted == 0
    assert outcome.seconds == base.seconds


def test_what_no_message_can_hold_is_refused():
    with pytest.raises(ValueError, match="do not fit"):
        virtual.drafted(Scheme(0.8, 200, k_max=8), virtual.PROMPT)


def test_mistakes_are_where_they_should_be_and_as_many():
    mistakes = Mistakes(0.8, 0.5, 10, 2010, Random(1))
    places = [p for p in range(2010) if mistakes.next(p) == p]
    assert places[0] >= 10
    assert len(places) == pytest.approx(400, rel=0.05)
    assert sum(map(mistakes.corrected, places)) == pytest.approx(200, rel=0.1)
    assert mistakes.next(2010) is None


def test_the_clock_delivers_in_order_and_not_before():
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


def test_the_sweep_prints_its_table(capsys: pytest.CaptureFixture[str]):
    assert sweep.main(["--virtual", "--every", "130"]) == 0
    out = capsys.readouterr().out
    assert "`python -m benchmarks.sweep --virtual --every 130`" in out
    assert "4 points: relative error" in out
    assert "| L / tt | h | a |" in out
