"""Shares are kept, order is chance."""

from __future__ import annotations

import itertools
import random

import pytest

from benchmarks.strata import BLOCK, choices, gaps


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
