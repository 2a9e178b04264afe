"""What a model takes to evaluate tokens beside others, nobody else at work."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path
from statistics import median

from server.llama.backend import Batch
from server.llama.llamacpp import LlamaBackend, LlamaOptions

TIMES = 5


def evaluation_ms(model: Path, threads: int, n_held: int, n_new: int) -> float:
    """Milliseconds of a decode of n_new tokens where the KV cache holds n_held others before them. Raises
    StartupError."""
    n_cells = n_held + n_new + 1
    with closing(LlamaBackend(LlamaOptions(model, n_cells, 1, n_threads=threads))) as backend:
        for start in range(0, n_held, backend.n_batch):
            _decode(backend, start, min(backend.n_batch, n_held - start))
        seconds: list[float] = []
        for _ in range(TIMES):
            began = time.perf_counter()
            _decode(backend, n_held, n_new)
            seconds.append(time.perf_counter() - began)
            backend.trim(0, n_held)
    return 1000 * median(seconds)


def _decode(backend: LlamaBackend, start: int, n: int) -> None:
    rows = Batch()
    rows.extend(0, start, [7 + (start + i) % 1000 for i in range(n)], 1)
    backend.decode(rows)
