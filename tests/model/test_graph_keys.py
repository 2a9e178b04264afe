"""Each shape of decode begins with an operation of its own, which changes no bit of the logits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.with_block import BLOCK, join
from drafters.drafter_settings import BUNDLED_MODEL as DRAFT
from server.llama import graph_keys, library
from server.llama.backend import Batch, Hidden, Logits
from server.llama.graph_keys import MAX_DECODE_ROWS, PROMPTS, GraphKeys
from server.llama.llamacpp import LlamaBackend, LlamaOptions
from server.llama.mtp import LlamaBlock
from server.llama.options import Weights
from server.settings import BUNDLED_MODEL as TARGET
from tests.model.kinds import KINDS
from tests.model.random_models import write

pytestmark = pytest.mark.model

WIDTHS = 1, 8, 1, 8, 3, 33, 1


@pytest.fixture
def keyed(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """Return a function that says whether models opened from now on have their own graphs, as with CUDA."""

    def say(on: bool) -> None:
        def each_has_its_own(weights: Weights, *, whole: bool) -> bool:
            return on

        monkeypatch.setattr(library, "each_has_its_own", each_has_its_own)

    return say


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[list[tuple[bytes, int]]]:
    """Return the first operations of each graph that is built, and their places."""
    graphs: list[list[tuple[bytes, int]]] = []
    apply = GraphKeys._apply  # pyright: ignore[reportPrivateUsage]

    def noted(self: GraphKeys, sampler: Any, context: Any, graph: int, data: Any) -> None:
        before = int(_graph("n_nodes")(graph))
        apply(self, sampler, context, graph, data)
        n, nodes = int(_graph("n_nodes")(graph)), _graph("nodes")(graph)
        if n > before:
            assert len({nodes[i] for i in range(n)}) == n == before + 1, "all others are still there"
            graphs.append([(_graph("operation")(nodes[i]), nodes[i]) for i in range(3)])

    monkeypatch.setattr(GraphKeys, "_apply", noted)
    return graphs


def _graph(name: str) -> Any:
    return getattr(graph_keys, f"_{name}")


def batches() -> Iterator[Batch]:
    """Yield a prompt in two parts, steps of one and of more rows, and parts of a longer prompt."""
    done = 0
    for width in (30, 30, *WIDTHS):
        batch = Batch()
        batch.extend(0, done, [10 + 7 * i % 400 for i in range(done, done + width)], min(width, 33))
        done += width
        yield batch
    for part in range(3):
        batch = Batch()
        batch.extend(
            2, part * (MAX_DECODE_ROWS + 20), [40 + i for i in range(MAX_DECODE_ROWS + 20)], part % 2
        )
        yield batch


def logits(path: Path) -> list[Logits]:
    options = LlamaOptions(path, 1024, 4, n_batch=256, n_ubatch=256, n_threads=2)
    with closing(LlamaBackend(options)) as backend:
        return [np.array(backend.decode(batch)) for batch in batches()]


@pytest.mark.parametrize("kind", ["bundled", "bundled-draft", *KINDS])
def test_the_logits_are_the_same(kind: str, tmp_path: Path, keyed: Callable[[bool], None]):
    path = {"bundled": TARGET, "bundled-draft": DRAFT}.get(kind, tmp_path / "model.gguf")
    if kind in KINDS:
        write(path, KINDS[kind])
    found = list[list[Logits]]()
    for on in (False, True):
        keyed(on)
        found.append(logits(path))
    for usual, others in zip(*found, strict=True):
        assert np.array_equal(usual, others)


def test_graph_has_its_shapes_key(keyed: Callable[[bool], None], begun: list[list[tuple[bytes, int]]]):
    keyed(True)
    options = LlamaOptions(TARGET, 1024, 4, n_batch=256, n_ubatch=256, n_threads=1)
    with closing(LlamaBackend(options)) as backend:
        assert backend.unlike_rows == MAX_DECODE_ROWS
        keys, shapes, firsts = backend.keys, list[tuple[int, int]](), list[int]()
        assert keys
        for batch in batches():
            n = len(begun)
            backend.decode(batch)
            if len(begun) == n:
                continue  # llama.cpp uses the graph of the decode before
            (embedded, _), (nothing, first), (after, _) = begun[-1]
            assert (embedded, nothing, after) == (b"GET_ROWS", b"NONE", b"RMS_NORM")
            n_rows, n_wanted = len(batch), sum(batch.wanted) + len(backend.dropped)
            is_long = n_rows > MAX_DECODE_ROWS
            shapes.append((PROMPTS, min(1, n_wanted)) if is_long else (n_rows, n_wanted))
            firsts.append(first)
        assert set(shapes) <= {key[:2] for key in keys.keys}
    places = dict(zip(shapes, firsts, strict=True))
    assert [places[shape] for shape in shapes] == firsts, "the place of a shape stays"
    assert len(set(firsts)) == len(places), "no two shapes have one place"
    assert {(1, 1), (8, 8), (33, 33), (PROMPTS, 0), (PROMPTS, 1)} <= set(places)


NO_ATTENTION_FIRST = "mamba", "jamba", "granitehybrid", "qwen35", "lfm2", "lfm2-window"


@pytest.mark.parametrize("kind", ["bundled", *KINDS])
def test_cell_counts_have_own_keys(kind: str, tmp_path: Path, keyed: Callable[[bool], None]):
    path = TARGET if kind == "bundled" else tmp_path / "model.gguf"
    if kind in KINDS:
        write(path, KINDS[kind])
    keyed(True)
    done, n_keys = 0, list[int]()
    with closing(LlamaBackend(LlamaOptions(path, 1024, 1, n_batch=256, n_ubatch=256))) as backend:
        assert backend.keys
        for n_rows in (60, 1, 1, 250, 1):
            batch = Batch()
            batch.extend(0, done, [40] * n_rows, 1)
            backend.decode(batch)
            done += n_rows
            n_keys.append(len([key for key in backend.keys.keys if key[:2] == (1, 1)]))
    assert n_keys[1] == n_keys[2]
    assert n_keys[4] - n_keys[2] == (kind not in NO_ATTENTION_FIRST)


def test_unused_shapes_are_forgotten(keyed: Callable[[bool], None], monkeypatch: pytest.MonkeyPatch):
    keyed(True)
    monkeypatch.setattr(graph_keys, "MAX_GRAPH_KEYS", 3)
    with closing(LlamaBackend(LlamaOptions(TARGET, 256, 1))) as backend:
        assert backend.keys
        for n_rows in (1, 2, 3, 1, 4, 5):
            batch = Batch()
            batch.extend(0, 0, [40] * n_rows, n_rows)
            backend.decode(batch)
            backend.trim(0, 0)
        assert [key[0] for key in backend.keys.keys] == [1, 4, 5]


def test_a_block_guesses_the_same(tmp_path: Path, keyed: Callable[[bool], None]):
    join(TARGET, BLOCK, tmp_path / "joined.gguf")
    options = LlamaOptions(tmp_path / "joined.gguf", 512, 2, n_batch=64, weights=Weights(mtp=True))
    found = list[list[tuple[Logits, Hidden]]]()
    for on in (False, True):
        keyed(on)
        with closing(LlamaBackend(options)) as target, closing(LlamaBlock(target)) as block:
            assert bool(target.keys) == bool(block.keys) == on
            found.append([guess(block, n) for n in (5, 1, 2, 1)])
    for (usual, hidden), (others, other_hidden) in zip(*found, strict=True):
        assert np.array_equal(usual, others)
        assert np.array_equal(hidden, other_hidden)


def guess(block: LlamaBlock, n: int) -> tuple[Logits, Hidden]:
    rows = np.random.default_rng(n).normal(size=(n, block.n_embd)).astype(np.float32)
    batch = Batch()
    batch.extend(0, block.length(0), [40 + i for i in range(n)], 1)
    out, hidden = block.evaluate(batch, rows)
    return out.copy(), hidden.copy()


def test_a_closed_context_leaves_nothing(keyed: Callable[[bool], None]):
    keyed(True)
    backend = LlamaBackend(LlamaOptions(DRAFT, 256, 1))
    keys = backend.keys
    assert keys
    assert keys.keys
    backend.close()
    assert not keys.keys
    assert backend.keys is None
    backend.close()  # may be repeated
