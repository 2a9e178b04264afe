"""Contexts and batches that are smaller than the number of sequences: llama.cpp alone aborts."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from server.lead.calibration import kept_times, measure, remembered_in_small_context, steady_widths
from server.llama.backend import Batch
from server.llama.context import LlamaContext
from server.llama.llamacpp import LlamaBackend, LlamaOptions
from server.settings import BUNDLED_MODEL
from tests.process.duo import run

pytestmark = pytest.mark.model


@pytest.mark.parametrize(("n_cells", "n_seqs", "n_batch"), [(1, 18, 512), (40, 18, 512), (4096, 96, 32)])
def test_small_context_still_measures_steps(n_cells: int, n_seqs: int, n_batch: int):
    options = LlamaOptions(BUNDLED_MODEL, n_cells=n_cells, n_seqs=n_seqs, n_batch=n_batch)
    with closing(LlamaBackend(options)) as backend:
        assert backend.n_cells == max(256, n_cells)
        assert set(measure(backend, 4, budget_s=0.1)) <= {1, 2, 3, 4}
        steady_widths(backend, 4)
        batch = Batch()
        for seq in range(n_seqs):
            batch.extend(seq, 0, [40], 1)
        assert len(backend.decode(batch)) == n_seqs


def test_steps_above_batch_are_refused():
    for command in (("serve", "--stable-width", "64"), ("probe", "--max-width", "64")):
        done = run(*command, "--batch-size", "40", *(("--port", "0") if command[0] == "serve" else ()))
        assert done.returncode == 1
        assert "Traceback" not in done.stderr
        assert "--batch-size 64" in done.stdout + done.stderr


def test_steps_are_timed_beside_a_conversation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    options = LlamaOptions(BUNDLED_MODEL, n_cells=256, n_seqs=2, n_batch=64)
    with closing(LlamaBackend(options)) as backend:
        rows = Batch()
        rows.extend(0, 0, [5, 6, 7], 1)
        backend.decode(rows)
        times = remembered_in_small_context(backend, 8, ["it"], LlamaContext)
        assert sorted(times) == [1, 2, 3, 4, 5, 6, 7, 8]
        assert all(seconds > 0 for seconds in times.values())
        assert backend.length(0) == 3, "the lead's own KV cache is untouched"
    assert kept_times(8, ["it"]) == times
