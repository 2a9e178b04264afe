"""Where a graph of a prompt's width must not be recorded, no two decodes in a row have one shape."""

from __future__ import annotations

from contextlib import closing

import numpy as np
import pytest

from server.llama.backend import Batch, Logits
from server.llama.llamacpp import LlamaBackend, LlamaOptions
from server.settings import BUNDLED_MODEL

pytestmark = pytest.mark.model

N_ROWS = 24


def chunks(backend: LlamaBackend, wanted: list[bool]) -> list[tuple[Logits, int]]:
    """What decodes of three equal chunks of a prompt return, and how many rows of logits llama.cpp made."""
    found: list[tuple[Logits, int]] = []
    for position in range(0, 3 * N_ROWS, N_ROWS):
        batch = Batch()
        batch.extend(0, position, [40 + i for i in range(N_ROWS)], 0)
        batch.wanted = list(wanted)
        logits = backend.decode(batch).copy()
        found.append((logits, sum(map(bool, backend.rows.batch.logits[:N_ROWS]))))
    backend.trim(0, 0)
    return found


@pytest.mark.parametrize("at", [(), (0,), (N_ROWS - 1,), (3, 4, N_ROWS - 1)])
def test_equal_chunks_have_other_numbers_of_wanted_rows_and_the_logits_that_were_wanted(at: tuple[int, ...]):
    wanted = [i in at for i in range(N_ROWS)]
    options = LlamaOptions(BUNDLED_MODEL, n_cells=256, n_seqs=1, n_batch=64, n_threads=1)
    with closing(LlamaBackend(options)) as backend:
        as_usual = chunks(backend, wanted)
        backend.own_rows = 16
        unlike = chunks(backend, wanted)
        backend.own_rows = N_ROWS
        few = chunks(backend, wanted)
    n = len(at)
    assert [made for _, made in as_usual] == [made for _, made in few] == [n, n, n]
    assert [made for _, made in unlike] == [n, n + 1, n]
    for (expected, _), (found, _) in zip(as_usual, unlike, strict=True):
        assert found.shape == expected.shape == (n, backend.vocab.size)
        assert np.array_equal(found, expected)


def test_a_step_of_guesses_stays_as_it_is():
    options = LlamaOptions(BUNDLED_MODEL, n_cells=256, n_seqs=1, n_batch=64, n_threads=1)
    with closing(LlamaBackend(options)) as backend:
        backend.own_rows = 16
        assert [made for _, made in chunks(backend, [True] * N_ROWS)] == [N_ROWS] * 3
