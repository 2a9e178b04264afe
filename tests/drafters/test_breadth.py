"""Breadth: branches where wrong guesses cost more than the branches' rows."""

from __future__ import annotations

from drafters.breadth import Breadth

STEADY = {1: 0.0019, 2: 0.0020, 3: 0.0023}
STEP_S = 0.009


def test_any_shape_where_a_change_costs_nothing():
    breadth = Breadth({})
    for _ in range(200):
        breadth.committed(1, 0, 0, STEP_S)
    assert (breadth.branches, breadth.rows) == (True, 1)


def test_branches_end_where_guesses_are_nearly_always_right_and_return_where_they_are_not():
    breadth = Breadth(STEADY)
    assert (breadth.branches, breadth.rows) == (True, 3)
    for _ in range(60):
        breadth.committed(4, 0, 0, STEP_S)
    assert (breadth.branches, breadth.rows) == (False, 1)
    for i in range(60):
        breadth.committed(2, 1, i % 2, STEP_S)
    assert (breadth.branches, breadth.rows) == (True, 3)


def test_a_slow_lead_loses_more_by_a_wrong_guess():
    breadth = Breadth(STEADY)
    for i in range(200):
        breadth.committed(19, 1, i % 2, 10 * STEP_S)
    assert breadth.branches
    for i in range(200):
        breadth.committed(19, 1, i % 2, STEP_S)
    assert not breadth.branches


def test_commits_without_guesses_say_nothing():
    breadth = Breadth(STEADY)
    for _ in range(500):
        breadth.committed(0, 0, 0, 0.0)
    assert breadth.branches


def test_branches_that_never_rescue_end_and_are_tried_anew_some_day():
    breadth = Breadth(STEADY)
    with_branches: list[bool] = []
    for _ in range(600):
        breadth.committed(3, 1, 0, STEP_S)
        with_branches.append(breadth.branches)
    assert with_branches[0]
    assert not with_branches[30]
    assert any(with_branches[31:])
    assert sum(with_branches) < 0.2 * len(with_branches)


def test_branches_that_rescue_stay():
    breadth = Breadth(STEADY)
    for i in range(400):
        breadth.committed(3, 1, i % 2, STEP_S)
        assert breadth.branches
