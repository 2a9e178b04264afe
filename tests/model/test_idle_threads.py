"""An idle lead measures with the threads of its engine: with more, all would sleep at each barrier."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from server.engine.engine import Engine
from server.engine.thread import EngineThread
from server.lead import idle_measuring
from server.lead.calibration import remembered_in_small_context
from server.lead.idle_measuring import IdleMeasuring
from server.llama.attention_times import measure
from server.llama.backend import Batch
from server.llama.context import LlamaContext
from server.llama.llamacpp import LlamaBackend, LlamaOptions
from server.settings import BUNDLED_MODEL
from tests.support import NoProposer

TASKS = Path("/proc/self/task")
N_THREADS = 3  # of a decode; others on the machine may leave it fewer

pytestmark = [
    pytest.mark.model,
    pytest.mark.skipif(not TASKS.is_dir(), reason="only Linux lists a process's threads"),
]


def n_tasks() -> int:
    return len(list(TASKS.iterdir()))


async def test_measurements_add_no_worker_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(idle_measuring, "QUIET_S", 0.1)
    counts, done = list[int](), threading.Event()

    def counted(make: Callable[[], LlamaContext]) -> Callable[[], LlamaContext]:
        def made() -> LlamaContext:
            context = make()
            start = context.start

            def start_counted(batch: Batch) -> object:
                counts.append(n_tasks())
                return start(batch)

            monkeypatch.setattr(context, "start", start_counted)
            return context

        return made

    options = LlamaOptions(BUNDLED_MODEL, 2048, 2, n_batch=128, n_threads=N_THREADS)
    with closing(LlamaBackend(options)) as backend:
        thread = EngineThread(lambda emit: Engine(backend, NoProposer(), emit), n_ctx=backend.n_ctx)

        def time_all(make: Callable[[], LlamaContext]) -> None:
            remembered_in_small_context(backend, 8, ["a model"], counted(make))
            measure(backend.model, options, make=counted(make))

        thread.start()
        rows = Batch(stable=True)  # with all threads
        rows.extend(0, 0, [1, 2, 3, 4], 4)
        await thread.ask(lambda _: (backend.decode(rows), backend.trim(0, 0)))
        with closing(IdleMeasuring(thread, [time_all], [done.set])) as measuring:
            measuring.start()
            n_before = n_tasks()
            assert await asyncio.to_thread(done.wait, 60)
        await thread.stop()
    assert len(counts) > 50
    assert max(counts) <= n_before + 1  # asyncio's thread, which waits
