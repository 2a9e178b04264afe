"""What a change of width costs on an emulated GPU."""

from __future__ import annotations

import pytest

from benchmarks.graphs import PROMPT_ROWS, Gpu, Graphs

GPU = Gpu({1: 5.0, 8: 7.0}, recorded=4.0, built=1.0, replayed=0.25, renewed=2.0)


def extra(rows: list[int], *, apart: bool) -> list[float]:
    graphs = Graphs(GPU, apart=apart)
    return [graphs.extra_ms(n) for n in rows]


@pytest.mark.parametrize("apart", [True, False])
def test_a_width_is_recorded_by_its_second_step(apart: bool):
    assert extra([8, 8, 8, 8], apart=apart) == [1.0, 4.0, 0.0, 0.0]


@pytest.mark.parametrize(("apart", "second"), [(True, 0.25), (False, 4.0)])
def test_single_rows_are_recorded_anew_after_others_if_they_share_their_graph(apart: bool, second: float):
    rows = [1, 1, 1, 8, 8, 8]
    assert extra(rows + rows, apart=apart) == [1.0, 4.0, 0.0, 1.0, 4.0, 0.0, *[1.0, second, 0.0] * 2]


@pytest.mark.parametrize(("apart", "single"), [(True, 0.25), (False, 2.0)])
def test_a_prompt_leaves_single_rows_their_graph_if_it_is_their_own(apart: bool, single: float):
    assert extra([1, 1, PROMPT_ROWS, 1, 1], apart=apart) == [1.0, 4.0, 0.0, 1.0, single]
    assert extra([8, 8, PROMPT_ROWS, 8, 8], apart=apart) == [1.0, 4.0, 0.0, 1.0, 2.0]
