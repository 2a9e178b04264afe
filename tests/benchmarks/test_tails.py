"""What a tail of states adds to a step, with a model of few layers."""

from __future__ import annotations

import re
from contextlib import closing
from pathlib import Path

import pytest

from benchmarks import tails
from benchmarks.tails import CONTEXT, HybridShape, TimedContext
from server.errors import StartupError
from server.llama.library import LoadedModel
from server.llama.options import LlamaOptions, Weights

SMALL = HybridShape(4, 256, 256, n_heads=2, n_kv=1, n_values=2, n_groups=2, size=64, n_state=32)

pytestmark = pytest.mark.model


def test_each_width_is_timed_with_each_tail(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setitem(tails.SIZES, "0.8B", SMALL)
    assert tails.main(["--tails", "2,4", "--widths", "1,4", "--rounds", "3", "--threads", "1"]) == 0
    out = capsys.readouterr().out
    assert "| rows | no tail | a tail of 2 | a tail of 4 |" in out
    rows = re.findall(r"^\| (\d+) \| [\d.]+ \| ([\d.]+) \| ([\d.]+) \|$", out, re.MULTILINE)
    assert [row[0] for row in rows] == ["1", "4"]
    assert all(float(ratio) > 0 for row in rows for ratio in row[1:])


@pytest.mark.parametrize(("n_tail", "kept"), [(0, 4), (2, 2), (4, 1)])
def test_a_step_takes_back_what_its_tail_allows(tmp_path: Path, n_tail: int, kept: int):
    path = tmp_path / "hybrid.gguf"
    tails.write(path, SMALL)
    options = LlamaOptions(path, 512, 1, n_batch=CONTEXT, n_tail=n_tail)
    with (
        closing(LoadedModel(path, Weights())) as model,
        closing(TimedContext(model, options, n_tail)) as context,
    ):
        before = context.length
        assert context.step_s(4) > 0
        assert context.length - before == kept


def test_a_tail_that_is_not_kept_is_told(tmp_path: Path):
    path = tmp_path / "hybrid.gguf"
    tails.write(path, SMALL)
    options = LlamaOptions(path, 512, 1, n_batch=CONTEXT, n_tail=2)
    with (
        closing(LoadedModel(path, Weights())) as model,
        pytest.raises(StartupError, match="keeps 2 states, not 4"),
    ):
        TimedContext(model, options, 4)
