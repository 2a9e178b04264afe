"""Where a graph of a prompt's width must not be recorded, no two decodes in a row have one shape."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from benchmarks.with_block import BLOCK, join
from server.llama.backend import Batch, Hidden, Logits
from server.llama.llamacpp import LlamaBackend, LlamaOptions
from server.llama.mtp import LlamaBlock
from server.llama.options import Weights
from server.settings import BUNDLED_MODEL

pytestmark = pytest.mark.model

N_ROWS = 24


def chunks(
    backend: LlamaBackend, wanted: list[bool], *, between: Callable[[int], None] = lambda position: None
) -> list[tuple[Logits, int]]:
    """Return the logits of three equal chunks of a prompt, and how many rows of logits llama.cpp made.

    between: decodes something at the position of the next chunk, and trims it.
    """
    found: list[tuple[Logits, int]] = []
    for position in range(0, 3 * N_ROWS, N_ROWS):
        between(position)
        batch = Batch()
        batch.extend(0, position, [40 + i for i in range(N_ROWS)], 0)
        batch.wanted = list(wanted)
        logits = backend.decode(batch).copy()
        found.append((logits, sum(map(bool, backend.rows.batch.logits[:N_ROWS]))))
    backend.trim(0, 0)
    return found


@pytest.mark.parametrize("at", [(), (0,), (N_ROWS - 1,), (3, 4, N_ROWS - 1)])
def test_chunks_return_their_wanted_rows(at: tuple[int, ...]):
    wanted = [i in at for i in range(N_ROWS)]
    options = LlamaOptions(BUNDLED_MODEL, n_cells=256, n_seqs=1, n_batch=64, n_threads=1)
    with closing(LlamaBackend(options)) as backend:
        as_usual = chunks(backend, wanted)
        backend.unlike_rows = 16
        unlike = chunks(backend, wanted)
        backend.unlike_rows = N_ROWS
        few = chunks(backend, wanted)
    n = len(at)
    assert [made for _, made in as_usual] == [made for _, made in few] == [n, n, n]
    assert [made for _, made in unlike] == ([n, n + 1, n] if n else [0, 1, 2]), (
        "decodes without have a graph too"
    )
    for (expected, _), (found, _) in zip(as_usual, unlike, strict=True):
        assert found.shape == expected.shape == (n, backend.vocab.size)
        assert np.array_equal(found, expected)


@pytest.mark.parametrize(("n_between", "made"), [(1, [1, 2, 1]), (8, [1, 2, 1]), (17, [1, 2, 1])])
def test_steps_keep_the_prompt_graph(n_between: int, made: list[int]):
    """Steps have their own graphs; otherwise a prompt with as many rows as before would be recorded again."""
    options = LlamaOptions(BUNDLED_MODEL, n_cells=256, n_seqs=1, n_batch=64, n_threads=1)
    with closing(LlamaBackend(options)) as backend:
        backend.unlike_rows = 16

        def between(position: int) -> None:
            batch = Batch()
            batch.extend(0, position, [40] * n_between, n_between)
            backend.decode(batch)
            backend.trim(0, position)

        wanted = [i == N_ROWS - 1 for i in range(N_ROWS)]
        assert [n for _, n in chunks(backend, wanted, between=between)] == made


def test_guessing_step_keeps_its_graph():
    options = LlamaOptions(BUNDLED_MODEL, n_cells=256, n_seqs=1, n_batch=64, n_threads=1)
    with closing(LlamaBackend(options)) as backend:
        backend.unlike_rows = 16
        assert [made for _, made in chunks(backend, [True] * N_ROWS)] == [N_ROWS] * 3


def test_block_returns_wanted_rows(tmp_path: Path):
    """Only the last row of a catch-up is wanted."""
    join(BUNDLED_MODEL, BLOCK, tmp_path / "joined.gguf")
    options = LlamaOptions(tmp_path / "joined.gguf", 256, 1, n_batch=64, weights=Weights(mtp=True))
    found = list[list[tuple[Logits, Hidden]]]()
    with closing(LlamaBackend(options)) as target:
        for unlike_rows in (0, 16):
            with closing(LlamaBlock(target)) as block:
                block.unlike_rows = unlike_rows
                found.append([*caught_up(block)])
                assert block.dropped == ([0] if unlike_rows else []), (
                    "the third chunk had the shape of the first"
                )
    for usual, unlike in zip(*found, strict=True):
        for expected, values in zip(usual, unlike, strict=True):
            assert values.shape == expected.shape
            assert np.array_equal(values, expected)


def caught_up(block: LlamaBlock) -> Iterator[tuple[Logits, Hidden]]:
    """Yield what equal chunks return, of which the second has no wanted row."""
    rows = np.random.default_rng(1).normal(size=(N_ROWS, block.n_embd)).astype(np.float32)
    for i, n_wanted in enumerate((1, 0, 1)):
        batch = Batch()
        batch.extend(0, i * N_ROWS, [40 + i for i in range(N_ROWS)], n_wanted)
        logits, hidden = block.evaluate(batch, rows)
        yield logits.copy(), hidden.copy()
