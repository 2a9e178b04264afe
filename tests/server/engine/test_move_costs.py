"""What the cache learns of this machine, what it decides by that, and what it remembers of it."""

from __future__ import annotations

import math

import orjson
import pytest

from server.cache.catalogue import Found
from server.engine.move_costs import STEPS_KEPT, MoveCosts
from server.estimators import Slope


def test_leaving_pays_above_moving_cost():
    costs = MoveCosts()
    assert not costs.leaving_pays(10_000, 2)  # nothing is known
    costs.moved(10_000, 10, 1e-5)  # 1,000 bytes a cell: 2 µs to save and to load
    for i in range(60):
        costs.evaluated(100, 0.1 + 0.01 * (i % 3), 1000 * (i % 3))  # 100 ns a token and cell
    assert costs.leaving_pays(30, 2)
    assert not costs.leaving_pays(15, 2)
    assert costs.leaving_pays(15, 1)  # it is saved already
    assert not costs.leaving_pays(5, 1)
    level = MoveCosts()
    level.moved(10_000, 10, 1e-5)
    for i in range(60):
        level.evaluated(100, 0.1, 1000 * (i % 3))
    assert not level.leaving_pays(10**6, 1)
    for i in range(60):
        level.stepped(0.02 + 0.001 * (i % 3), 1000 * (i % 3))  # 1 µs a step and cell
    assert level.leaving_pays(1, 2)


def test_the_slope_of_what_was_seen():
    slope = Slope(STEPS_KEPT)
    assert slope.value == 0.0
    slope.observe(5.0, 2.0)
    assert slope.value == 0.0
    for x in range(20):
        slope.observe(x, 3.0 + 0.5 * x)
    assert slope.value == pytest.approx(0.5, abs=0.05)
    for x in range(400):
        slope.observe(x % 7, 9.0 - x % 7)
    assert slope.value == 0.0


def test_loading_pays_below_evaluating_cost():
    costs = MoveCosts()
    for _ in range(60):
        costs.evaluated(100, 0.1, 0)  # 1 ms a token
        costs.moved(10**9, 10**5, 1.0)  # 1 ns a byte
    assert costs.loading_pays(Found(1000, "", 1000, 10**8, "memory"), 0)
    assert not costs.loading_pays(Found(1000, "", 1000, 10**8, "memory"), 950)
    assert not costs.loading_pays(Found(10, "", 10, 10**8, "memory"), 0)


def test_idle_copy_pays_below_evaluation():
    costs = MoveCosts()
    assert costs.copying_pays  # nothing is known
    for _ in range(60):
        costs.evaluated(100, 0.1, 0)  # 1 ms a token
        costs.moved(9 * 10**7, 100, 0.09)  # 0.9 ms a token
    assert costs.copying_pays
    assert not costs.saving_pays
    for _ in range(60):
        costs.moved(9 * 10**7, 100, 0.11)
    assert not costs.copying_pays


def test_saving_pays_below_both_costs():
    costs = MoveCosts()
    assert costs.saving_pays  # nothing is known
    for _ in range(60):
        costs.evaluated(100, 0.1, 0)  # 1 ms a token
        costs.moved(10_000, 10, 0.0049)  # 0.98 ms to save and to load one
    assert costs.saving_pays
    for _ in range(60):
        costs.moved(10_000, 10, 0.0051)
    assert not costs.saving_pays
    for i in range(60):
        costs.evaluated(100, 0.1 + 0.01 * (i % 3), 1000 * (i % 3))  # 100 ns a token and cell
    assert costs.leaving_pays(12_000, 2)  # 1.2 ms a cell; to evaluate one takes 1.1
    assert not costs.leaving_pays(10_000, 2)


def test_interrupted_move_ends_no_saving():
    """Only moves are timed, so otherwise nothing would be saved again."""
    costs = MoveCosts()
    costs.moved(10**6, 100, 1e-3)
    costs.moved(10**6, 100, 60.0)
    assert costs.saving_pays
    assert costs.byte_s.value < 2e-9
    for _ in range(20):
        costs.moved(10**6, 100, 60.0)
    assert not costs.saving_pays


def test_slower_moves_show_after_eight():
    costs = MoveCosts()
    for _ in range(8):
        costs.moved(10**6, 100, 1e-2)
    assert costs.byte_s.value > 7.5e-9


def learned() -> MoveCosts:
    costs = MoveCosts()
    for i in range(80):
        costs.evaluated(100, 0.1 + 0.01 * (i % 3), 1000 * (i % 3))
        costs.stepped(0.02 + 0.001 * (i % 5), 500 * (i % 5))
        costs.moved(30_000_000, 3_600, 0.004)
    return costs


def test_learned_costs_survive_saving():
    costs, again = learned(), MoveCosts()
    assert again.recall(orjson.loads(orjson.dumps(costs.memory())))
    assert again.memory() == costs.memory()
    for n_tokens in (0, 10, 100, 300, 1000, 3000):
        for n_moves in (1, 2):
            assert again.leaving_pays(n_tokens, n_moves) == costs.leaving_pays(n_tokens, n_moves)
    assert not MoveCosts().leaving_pays(3000, 1)
    assert again.leaving_pays(3000, 1)
    again.evaluated(100, 0.1, 0)
    costs.evaluated(100, 0.1, 0)
    assert again.memory() == costs.memory()
    fresh = MoveCosts()
    assert fresh.recall(MoveCosts().memory())
    assert fresh.memory() == MoveCosts().memory()


def changed(at: int, value: object) -> list[object]:
    memory: list[object] = [*learned().memory()]
    memory[at] = value
    return memory


@pytest.mark.parametrize(
    "memory",
    [
        None,
        {},
        "[1.0]",
        [],
        learned().memory()[:-1],
        [*learned().memory(), 0.0],
        changed(0, 2.0),
        changed(1, 0.0),
        changed(1, 1e300),
        changed(2, 0.0),
        changed(2, 1.0),
        changed(2, -1e-9),
        changed(3, math.nan),
        changed(3, math.inf),
        changed(4, 1e6),
        changed(5, 1e12),
        changed(9, None),
        changed(9, True),
        changed(11, "1"),
        changed(12, 0.0),
        changed(6, 1e300),
        changed(8, 1e12),
        changed(13, 1e300),
    ],
)
def test_impossible_costs_are_rejected(memory: object):
    costs = learned()
    before = costs.memory()
    assert not costs.recall(memory)
    assert costs.memory() == before
