"""What a change of width costs on an emulated GPU."""

from __future__ import annotations

import pytest

from benchmarks.graphs import PROMPT_ROWS, Gpu, Graphs
from server.llama.backend import CELLS_STEP, Batch

GPU = Gpu(
    {1: 5.0, 8: 7.0},
    built={1: 1.0, 8: 2.0, 16: 4.0},
    recorded={1: 4.0, 8: 6.0, 16: 8.0},
    renewed={1: 2.0, 8: 3.0, 16: 5.0},
    again=0.5,
)


def extra(rows: list[int], *, own: bool) -> list[float]:
    graphs = Graphs(GPU, own=own)
    return [graphs.extra_ms(step(n), 0) for n in rows]


def step(n_rows: int, seq: int = 0) -> Batch:
    batch = Batch()
    batch.extend(seq, 0, [1] * n_rows, n_rows)
    return batch


@pytest.mark.parametrize("own", [True, False])
def test_second_step_records_a_width(own: bool):
    assert extra([8, 8, 8, 8], own=own) == [2.0, 6.0, 0.0, 0.0]


def test_change_cost_lies_between_widths():
    assert extra([12, 12, 12], own=True) == [3.0, 7.0, 0.0]


@pytest.mark.parametrize(
    ("own", "back"), [(True, [0.5, 0.0, 0.0, 0.5, 0.0, 0.0]), (False, [1.0, 4.0, 0.0, 2.0, 6.0, 0.0])]
)
def test_own_graph_spares_other_widths(own: bool, back: list[float]):
    rows = [1, 1, 1, 8, 8, 8]
    assert extra(rows + rows, own=own) == [1.0, 4.0, 0.0, 2.0, 6.0, 0.0, *back]


@pytest.mark.parametrize(("own", "back"), [(True, [0.5, 0.0]), (False, [1.0, 4.0])])
def test_own_graphs_survive_a_prompt(own: bool, back: list[float]):
    assert extra([1, 1, PROMPT_ROWS, 1, 1], own=own) == [1.0, 4.0, 0.0, *back]


@pytest.mark.parametrize("own", [True, False])
def test_longer_context_records_widths_again(own: bool):
    graphs = Graphs(GPU, own=own)
    cells = [0, 0, 0, CELLS_STEP, CELLS_STEP, CELLS_STEP, 0, 0]
    back = [0.0, 0.0] if own else [2.0, 3.0]
    again = 6.0 if own else 3.0
    found = [graphs.extra_ms(step(8), n_cells) for n_cells in cells]
    assert found == [2.0, 6.0, 0.0, 2.0, again, 0.0, *back]


def test_other_sequences_build_a_graph():
    graphs = Graphs(GPU, own=True)
    assert [graphs.extra_ms(step(8, seq=seq), 0) for seq in (0, 0, 0, 1, 1)] == [2.0, 6.0, 0.0, 0.5, 0.0]
