"""The bundled models where llama.cpp's arithmetic depends least on the width of a batch.

Measured on AVX-512, one thread, no flash attention: the logits of a row are the same bits at widths 2 to 64
for the F32 model and differ by up to 5e-5 at width 1; for Q8_0 they are the same bits at widths 1 to 64.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import cast

import pytest
import redis

from benchmarks.inflate import convert
from drafters.drafter_settings import BUNDLED_MODEL as DRAFT
from server.llama.llamacpp import LlamaBackend, LlamaOptions
from server.llama.options import Weights
from server.local.embedded import EmbeddedServer
from server.settings import BUNDLED_MODEL as TARGET


@pytest.fixture(scope="session")
def f32_pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return the paths of target and draft."""
    folder = tmp_path_factory.mktemp("f32")
    target, draft = folder / "target.gguf", folder / "draft.gguf"
    convert(TARGET, target, "f32")
    convert(DRAFT, draft, "f32")
    return target, draft


@pytest.fixture(scope="session")
def f32_target(f32_pair: tuple[Path, Path]) -> Iterator[LlamaBackend]:
    with closing(open_exact(f32_pair[0])) as backend:
        yield backend


@pytest.fixture(scope="session")
def q8_target() -> Iterator[LlamaBackend]:
    with closing(open_exact(TARGET)) as backend:
        yield backend


def open_exact(
    path: Path, n_streams: int = 0, n_tail: int = 0, weights: Weights | None = None
) -> LlamaBackend:
    options = LlamaOptions(
        path,
        n_cells=4096,
        n_seqs=16,
        n_threads=1,
        cache_type_k="f32",
        cache_type_v="f32",
        flash_attention="off",
        n_streams=n_streams,
        n_tail=n_tail,
        weights=weights or Weights(),
    )
    return LlamaBackend(options)


@contextmanager
def redis_server() -> Generator[EmbeddedServer]:
    """Yield a Redis server, and fail if a key without a time to live is left on it."""
    with EmbeddedServer() as one:
        yield one
        with suppress(redis.ConnectionError), redis.Redis.from_url(one.url) as client:
            keys = cast(list[bytes], client.keys())
            assert [key for key in keys if client.ttl(key) == -1] == []


@pytest.fixture
def server() -> Iterator[EmbeddedServer]:
    with redis_server() as one:
        yield one
