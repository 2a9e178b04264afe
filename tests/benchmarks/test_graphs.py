"""What a change of width costs on an emulated GPU."""

from __future__ import annotations

import pytest

from benchmarks.graphs import PROMPT_ROWS, Gpu, Graphs

GPU = Gpu(
    {1: 5.0, 8: 7.0},
    built={1: 1.0, 8: 2.0, 16: 4.0},
    recorded={1: 4.0, 8: 6.0, 16: 8.0},
    renewed={1: 2.0, 8: 3.0, 16: 5.0},
    again=0.5,
)


def extra(rows: list[int], *, apart: bool) -> list[float]:
    graphs = Graphs(GPU, apart=apart)
    return [graphs.extra_ms(n) for n in rows]


@pytest.mark.parametrize("apart", [True, False])
def test_a_width_is_recorded_by_its_second_step(apart: bool):
    assert extra([8, 8, 8, 8], apart=apart) == [2.0, 6.0, 0.0, 0.0]


def test_what_a_change_costs_lies_between_the_known_widths():
    assert extra([12, 12, 12], apart=True) == [3.0, 7.0, 0.0]


@pytest.mark.parametrize(
    ("apart", "back"), [(True, [0.5, 0.0, 0.0, 0.5, 0.0, 0.0]), (False, [1.0, 4.0, 0.0, 2.0, 6.0, 0.0])]
)
def test_single_rows_leave_the_graph_of_others_if_they_have_their_own(apart: bool, back: list[float]):
    rows = [1, 1, 1, 8, 8, 8]
    assert extra(rows + rows, apart=apart) == [1.0, 4.0, 0.0, 2.0, 6.0, 0.0, *back]


@pytest.mark.parametrize(("apart", "back"), [(True, [0.5, 0.0]), (False, [1.0, 2.0])])
def test_a_prompt_leaves_single_rows_their_graph_if_it_is_their_own(apart: bool, back: list[float]):
    assert extra([1, 1, PROMPT_ROWS, 1, 1], apart=apart) == [1.0, 4.0, 0.0, *back]


@pytest.mark.parametrize("between", [PROMPT_ROWS, 16])
def test_a_width_is_recorded_anew_after_a_prompt_or_a_step_of_another_width(between: int):
    steps = extra([8, 8, between, 1, 8, 8, 8], apart=True)
    assert steps[-3:] == [2.0, 3.0, 0.0]


def test_another_width_that_was_recorded_has_to_be_recorded_again():
    assert extra([8, 8, 16, 16, 8, 8], apart=True)[-2:] == [2.0, 6.0]
