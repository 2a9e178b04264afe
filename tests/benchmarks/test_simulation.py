"""The simulator against the formulas, what the formulas leave out, and its draws."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import pytest

from benchmarks import sweep
from benchmarks.formulas import Scheme, asynchronous, limit, speedup, staircase, with_outages
from benchmarks.simulation import BLOCK, DrafterSetup, LeadSetup, choices, gaps, simulate

GRID = list(itertools.product((0.5, 0.9), (2.0, 8.0, 20.0), (0.0, 0.5, 2.0), (0.0, 0.5, 1.0)))
ONE = DrafterSetup(0.8, 8)


@pytest.mark.parametrize(("a", "r", "latency", "h"), GRID)
def test_within_3_percent_of_the_formula(a: float, r: float, latency: float, h: float):
    result = simulate(LeadSetup(), [DrafterSetup(a, r, h, latency)], 3000)
    assert result.speedup == pytest.approx(speedup(Scheme(a, r, latency, h)), rel=0.03)


@pytest.mark.parametrize("r", [5.0, 7.3])
def test_a_cost_curve_a_bound_and_a_broken_ratio(r: float):
    v = staircase({0: 1.0, 1: 1.2, 3: 1.3, 7: 1.6, 15: 2.1})
    result = simulate(LeadSetup(v, k_max=8), [DrafterSetup(0.8, r, 0.5, 0.35)], 8000)
    assert result.speedup == pytest.approx(speedup(Scheme(0.8, r, 0.35, 0.5, v, 8)), rel=0.03)
    assert result.n_verified <= 8 * result.n_steps


def test_a_second_drafter_helps_and_a_tree_of_both_helps_more():
    one = simulate(LeadSetup(), [ONE], 4000).speedup
    longest = simulate(LeadSetup(), [ONE, ONE], 4000).speedup
    both = simulate(LeadSetup(merge="all"), [ONE, ONE], 4000).speedup
    assert 1.1 * one < longest < both < limit(0.96, 8)  # 0.96: at least one of two is right


def test_a_drafter_that_dies_and_returns():
    away = DrafterSetup(0.8, 8, outages=tuple((100.0 * i, 100.0 * i + 50) for i in range(100)))
    result = simulate(LeadSetup(), [away], 6000)
    assert result.speedup == pytest.approx(with_outages(asynchronous(0.8, 8), 0.5), rel=0.03)


def test_a_drafter_that_never_returns_costs_nothing():
    gone = DrafterSetup(0.8, 8, outages=((0.0, 1e9),))
    assert simulate(LeadSetup(), [gone], 500).speedup == 1.0


def test_a_drafter_slower_than_the_lead_loses_nothing():
    assert simulate(LeadSetup(), [DrafterSetup(0.9, 0.4)], 2000).speedup >= 1.0


def test_the_program_prints_and_appends(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    results = tmp_path / "RESULTS.md"
    assert sweep.main(["--simulated", "--every", "97", "--append", str(results)]) == 0
    text = results.read_text()
    assert text.strip() in capsys.readouterr().out
    assert "`python -m benchmarks.sweep --simulated" in text
    assert "| two drafters, both paths verified |" in text
    assert str(tmp_path) not in text


# -- draws


@pytest.mark.parametrize("a", [0.5, 0.8, 0.95])
def test_gaps_have_the_mean_and_the_spread_of_a_geometric_distribution(a: float):
    block = list(itertools.islice(gaps(a, random.Random(1)), BLOCK))
    mean = sum(block) / BLOCK
    assert mean == pytest.approx(a / (1 - a), abs=1 / BLOCK)
    assert block.count(0) / BLOCK == pytest.approx(1 - a, abs=1 / BLOCK)
    assert sum((gap - mean) ** 2 for gap in block) / BLOCK == pytest.approx(a / (1 - a) ** 2, rel=0.1)


@pytest.mark.parametrize("p", [0.0, 0.33, 0.5, 1.0])
def test_choices_come_as_often_as_they_should(p: float):
    assert sum(itertools.islice(choices(p, random.Random(1)), 1000)) == pytest.approx(1000 * p, abs=1)


def test_the_order_depends_on_the_seed_only():
    first, again, other = (list(itertools.islice(gaps(0.8, random.Random(s)), 50)) for s in (1, 1, 2))
    assert first == again != other
