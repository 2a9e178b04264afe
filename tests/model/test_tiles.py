"""Rows added to a decode change neither what is computed nor what the KV cache holds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from unittest.mock import MagicMock

import numpy as np
import pytest

from server.lead.loading import remember_tiles
from server.llama.backend import Batch, Logits
from server.llama.llamacpp import LlamaBackend
from server.llama.options import LlamaOptions
from server.llama.tiles import TILE, Tiles
from server.settings import BUNDLED_MODEL

pytestmark = [pytest.mark.model, pytest.mark.timeout(120)]

N_CELLS, CONTEXT = 512, 300


class Always(Tiles):
    """Pads whatever there is, and knows how many rows were decoded last."""

    n_rows = 0

    def observe(self, n_rows: int, n_cells: int, seconds: float) -> None:
        self.n_rows = n_rows

    def padding(self, n_rows: int, n_cells: int, longest: int) -> int:
        return max(0, TILE - n_rows)


@pytest.fixture
def backend() -> Iterator[LlamaBackend]:
    with closing(LlamaBackend(LlamaOptions(BUNDLED_MODEL, n_cells=N_CELLS, n_seqs=3))) as one:
        one.tiles = Always()
        yield one


def evaluate(backend: LlamaBackend, seq: int, start: int, n: int, *, fixed: bool) -> Logits:
    batch = Batch(fixed=fixed)
    batch.extend(seq, start, [10 + (7 * i) % 5000 for i in range(start, start + n)], 2)
    logits = backend.decode(batch).copy()
    assert isinstance(backend.tiles, Always)
    assert backend.tiles.n_rows == (n if fixed else max(n, TILE))
    return logits


@pytest.mark.parametrize("n", [2, 26, TILE - 1, TILE, TILE + 9])
def test_the_logits_are_the_same_but_for_rounding(backend: LlamaBackend, n: int):
    rows: list[Logits] = []
    for fixed in (True, False):
        evaluate(backend, 0, 0, CONTEXT, fixed=True)
        rows.append(evaluate(backend, 0, CONTEXT, n, fixed=fixed))
        rows.append(evaluate(backend, 0, CONTEXT + n, 2, fixed=True))  # what the cache holds now
        backend.trim(0, 0)
    plain, after_plain, padded, after_padded = rows
    assert padded.shape == plain.shape == (2, backend.vocab.size)
    assert np.abs(padded - plain).max() < 0.05 * np.ptp(plain)
    assert np.abs(after_padded - after_plain).max() < 0.05 * np.ptp(plain)
    assert (padded.argmax(axis=1) == plain.argmax(axis=1)).all()


def test_no_cell_is_lost(backend: LlamaBackend):
    evaluate(backend, 1, 0, backend.n_cells - 100, fixed=True)
    for _ in range(50):
        evaluate(backend, 0, 0, 5, fixed=False)
        backend.trim(0, 0)
    evaluate(backend, 0, 0, 100, fixed=True)


def test_where_there_is_no_room_for_more_rows_there_are_none(backend: LlamaBackend):
    evaluate(backend, 1, 0, backend.n_cells - 10, fixed=True)
    batch = Batch()
    batch.extend(0, 0, [10 + (7 * i) % 5000 for i in range(10)], 2)
    last = backend.decode(batch).copy()
    backend.trim(0, 0)
    assert np.array_equal(last, evaluate(backend, 0, 0, 10, fixed=True))


def test_trees_are_padded_too(backend: LlamaBackend):
    def tree(*, fixed: bool) -> Logits:
        evaluate(backend, 0, 0, 20, fixed=True)
        backend.copy(0, 1, 0, 20)
        batch = Batch(fixed=fixed)
        batch.append((0, 1), 20, 100, wanted=True)
        batch.append((0,), 21, 200, wanted=True)
        batch.append((1,), 21, 300, wanted=True)
        logits = backend.decode(batch).copy()
        for seq in (0, 1):
            backend.trim(seq, 0)
        return logits

    plain, padded = tree(fixed=True), tree(fixed=False)
    assert isinstance(backend.tiles, Always)
    assert backend.tiles.n_rows == TILE
    assert np.abs(padded - plain).max() < 0.05 * np.ptp(plain)


def test_a_lead_remembers_over_a_restart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    options, memory = LlamaOptions(BUNDLED_MODEL, n_cells=N_CELLS, n_seqs=1), list[float]()
    for _ in range(2):
        with ExitStack() as stack:
            one = stack.enter_context(closing(LlamaBackend(options)))
            remember_tiles(stack, one)
            assert one.tiles is not None
            assert not memory or one.tiles.memory() == memory
            one.decode(Batch([1, 2], [0, 1], [0, 0], [False, True]))
            memory = one.tiles.memory()


def test_a_model_on_a_gpu_is_left_alone(backend: LlamaBackend, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("server.llama.llamacpp.computes_elsewhere", MagicMock(return_value=True))
    with closing(LlamaBackend(LlamaOptions(BUNDLED_MODEL, n_cells=N_CELLS, n_seqs=3))) as one:
        assert one.tiles is None
