"""The number of threads changes no bit of the logits (server/llama/threads.py), but one case of attention."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from drafters.drafter_settings import BUNDLED_MODEL as DRAFT
from server.llama.backend import Batch, Logits
from server.llama.llamacpp import LlamaBackend, LlamaOptions
from server.llama.options import FlashAttention
from server.settings import BUNDLED_MODEL as TARGET
from tests.model.kinds import KINDS
from tests.model.random_models import write

pytestmark = pytest.mark.model

NUMBERS = 1, 2, 3  # of threads
WIDTHS = 1, 2, 3, 5, 8, 16
DIVIDED = 512  # cells in use from which llama.cpp divides them among threads, for a single row


def logits_by_width(
    path: Path, n_threads: int, attention: FlashAttention, n_before: int
) -> dict[int, Logits]:
    """Return logits by number of rows: parts of a prompt of n_before tokens, and steps of WIDTHS after it."""
    options = LlamaOptions(path, 1024, 1, n_batch=128, n_threads=n_threads, flash_attention=attention)
    found = dict[int, Logits]()
    with closing(LlamaBackend(options)) as backend:
        tokens = [10 + 7 * i % 400 for i in range(n_before + sum(WIDTHS))]
        done = 0
        for width in (*[128] * (n_before // 128), n_before % 128, *WIDTHS):
            batch = Batch(stable=True)  # else fewer threads compute beside other tests
            batch.extend(0, done, tokens[done : done + width], width)
            found[width] = np.array(backend.decode(batch))
            done += width
    return found


@pytest.mark.parametrize("kind", ["bundled", "bundled-draft", *KINDS])
def test_the_number_of_threads_changes_no_bit(kind: str, tmp_path: Path):
    path = {"bundled": TARGET, "bundled-draft": DRAFT}.get(kind, tmp_path / "model.gguf")
    if kind in KINDS:
        write(path, KINDS[kind])
    one, *others = [logits_by_width(path, n, "off", 140) for n in NUMBERS]
    for other in others:
        assert all((one[width] == other[width]).all() for width in one)


def test_threads_change_long_single_rows():
    short = [logits_by_width(TARGET, n, "on", 140) for n in NUMBERS]
    assert all((short[0][width] == other[width]).all() for other in short[1:] for width in WIDTHS)
    long = [logits_by_width(TARGET, n, "on", DIVIDED + 60) for n in NUMBERS]
    assert all((long[0][width] == other[width]).all() for other in long[1:] for width in (128, 60))
    assert not (long[0][1] == long[1][1]).all(), "llama.cpp divides nothing now: threads.py may say so"
