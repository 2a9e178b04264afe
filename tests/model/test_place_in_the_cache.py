"""What the bits of a row depend on beside the tokens and the width: where its cells lie in the KV cache.

docs/adr/0002 says what this shows of CPUs and the pinned llama.cpp. A failure means that this has changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import pytest

from server.llama.backend import Batch, Logits
from server.llama.llamacpp import LlamaBackend, LlamaOptions

pytestmark = pytest.mark.model

TOKENS = list(range(40, 1040))
FEW = 32  # rows: fewer than the 64 that llama.cpp's tiled attention takes


class Place(NamedTuple):
    """Cells of other sequences: before the prompt's, and between the prompt's and the reply's."""

    before: int = 0
    between: int = 0


HERE = Place()


class Scored(NamedTuple):
    """A prompt, evaluated in chunks, and the rows after it, decoded together."""

    n_prompt: int
    chunk: int
    width: int


def score(backend: LlamaBackend, what: Scored, place: Place = HERE) -> Logits:
    for seq in range(3):
        backend.trim(seq, 0)
    decode(backend, 1, 0, place.before, place.before)
    decode(backend, 0, 0, what.n_prompt, what.chunk)
    decode(backend, 2, 0, place.between, place.between)
    return decode(backend, 0, what.n_prompt, what.width, what.width)


def decode(backend: LlamaBackend, seq: int, position: int, n: int, chunk: int) -> Logits:
    """Decode the next n tokens of a sequence and return the logits of the last chunk."""
    rows = np.empty((0, 0), np.float32)
    for start in range(position, position + n, max(1, chunk)):
        tokens = TOKENS[start : min(start + chunk, position + n)]
        batch = Batch(stable=True)  # else fewer threads compute beside other tests
        batch.extend(seq, start, tokens, len(tokens))
        rows = backend.decode(batch).copy()
    return rows


Open = Callable[[int, Literal["on", "off"]], LlamaBackend]


@pytest.fixture
def opened(f32_pair: tuple[Path, Path]) -> Iterator[Open]:
    """Yield a function that makes backends by threads and flash attention."""
    with ExitStack() as stack:

        def make(n_threads: int, flash_attention: Literal["on", "off"]) -> LlamaBackend:
            kinds = ("f32", "f32", flash_attention)
            options = LlamaOptions(f32_pair[1], 2048, 3, 512, n_threads, 0, 0, *kinds)
            return stack.enter_context(closing(LlamaBackend(options)))

        yield make


def moves(backend: LlamaBackend, what: Scored, place: Place) -> bool:
    """Return True if any bit changes with the place.

    The first place must give the same bits twice.
    """
    here = score(backend, what)
    np.testing.assert_array_equal(score(backend, what), here)
    return not np.array_equal(score(backend, what, place), here)


@pytest.mark.parametrize("width", [1, 2, 8])
@pytest.mark.parametrize("place", [Place(before=1), Place(before=100), Place(between=450)])
def test_single_thread_ignores_the_place(opened: Open, width: int, place: Place):
    assert not moves(opened(1, "on"), Scored(60, FEW, width), place)


def test_many_threads_depend_after_512(opened: Open):
    """Cells in use, of any sequence, are divided among the threads."""
    backend = opened(2, "on")
    assert not moves(backend, Scored(60, FEW, 1), Place(before=100))
    assert moves(backend, Scored(60, FEW, 1), Place(between=450))
    assert not moves(backend, Scored(60, FEW, 2), Place(between=450))


def test_wide_rows_depend_on_place(opened: Open):
    backend = opened(1, "on")
    assert not moves(backend, Scored(128, FEW, 64), Place(before=64))
    assert moves(backend, Scored(128, FEW, 64), Place(before=1))
    assert moves(backend, Scored(128, 128, 1), Place(before=1)), "a prompt hands that on to its reply"


def test_without_flash_place_matters(opened: Open):
    backend = opened(1, "off")
    assert not moves(backend, Scored(60, FEW, 1), Place(before=64))
    assert moves(backend, Scored(60, FEW, 1), Place(before=1))
    assert moves(backend, Scored(60, FEW, 8), Place(before=1))


def test_reused_prompts_end_differently(opened: Open):
    """The first of several equal requests has other bits than those that find its prompt in the cache."""
    backend = opened(1, "on")
    whole = score(backend, Scored(0, 0, 60))[-1]
    assert not np.array_equal(score(backend, Scored(59, 59, 1))[-1], whole)


def test_streams_ignore_all_others(f32_pair: tuple[Path, Path]):
    """This holds in the worst case above, and for a prompt copied from another conversation."""
    options = LlamaOptions(f32_pair[1], 6144, 3, n_threads=2, flash_attention="off", n_streams=3)
    with closing(LlamaBackend(options)) as backend:
        assert (backend.n_seqs, backend.n_ctx) == (3, 2048)
        for width in (1, 2, 8, 64):
            for place in (Place(before=1), Place(before=100), Place(between=450)):
                assert not moves(backend, Scored(60, FEW, width), place)
        here = score(backend, Scored(60, FEW, 8))
        backend.copy(0, 1, 0, 60)
        copied = Batch()
        copied.extend(1, 60, TOKENS[60:68], 8)
        np.testing.assert_array_equal(backend.decode(copied), here)
        together = Batch()
        for seq in (0, 2):
            backend.trim(seq, 0 if seq else 60)
            together.extend(seq, 60 * (not seq), TOKENS[60:64], 4)
        np.testing.assert_allclose(backend.decode(together)[:4], here[:4], atol=1e-5)
