"""The cost curve of a toy model whose costs are known."""

from __future__ import annotations

import pytest

from benchmarks.steps import main, measure, table
from tests.fake_backend import FakeBackend


@pytest.mark.usefixtures("still_clock")
def test_the_curve_is_that_of_the_model():
    backend = FakeBackend(step_s=0.004, row_s=0.001)
    costs = measure(backend, [1, 4, 8], n_context=100, n_rounds=5)
    assert [cost.width for cost in costs] == [1, 4, 8]
    assert costs[0].ratio == 1.0
    assert costs[0].ms == pytest.approx(5.0)
    assert costs[1].ratio == pytest.approx((4 + 4) / (4 + 1))
    assert costs[2].ratio == pytest.approx((4 + 8) / (4 + 1))
    assert backend.length(0) == 0


def test_every_step_stands_on_the_same_context():
    backend = FakeBackend()
    measure(backend, [2, 3], n_context=70, n_rounds=2)
    assert backend.widths == [64, 6, *[1, 2, 3] * 3]  # prefill, then a warming round and two that count


def test_the_table_has_a_line_for_each_width():
    costs = measure(FakeBackend(), [1, 2], n_context=0, n_rounds=1)
    assert len(table(costs).splitlines()) == 4


def test_a_missing_model_is_told_in_one_line(capsys: pytest.CaptureFixture[str]):
    assert main(["--model", "missing.gguf"]) == 1
    assert capsys.readouterr().err.startswith("steps: no model file at missing.gguf")
