"""Profiles of the engine's thread: what is counted, and that a lead writes one."""

from __future__ import annotations

import asyncio
import marshal
from pathlib import Path

from benchmarks import hot
from benchmarks.hot import Entry, Function
from server.engine.engine import Engine
from server.engine.proposer import NoProposer
from server.engine.request import GenerationRequest
from server.engine.thread import EngineThread
from tests.fake_backend import FakeBackend


def test_the_hottest_functions_of_a_step():
    stats: dict[Function, Entry] = {
        ("a/building.py", 7, "build"): (4, 4, 0.002, 1.0, {}),
        ("b/draw.py", 9, "draw"): (8, 8, 0.004, 0.004, {}),
        ("~", 0, "<method 'get' of '_queue.SimpleQueue' objects>"): (9, 9, 5.0, 5.0, {}),
        ("c/other.py", 1, "rest"): (1, 1, 0.002, 0.1, {}),
    }
    n_steps, table = hot.hottest(stats, 2)
    assert n_steps == 4
    assert table.splitlines()[2:] == [
        "| `b/draw.py:9 draw` | 1000.0 | 2.0 | 50.0 % |",
        "| `a/building.py:7 build` | 500.0 | 1.0 | 25.0 % |",
    ]


async def test_the_engines_thread_writes_its_profile_when_it_ends(tmp_path: Path):
    backend = FakeBackend()
    path = tmp_path / "engine.prof"
    thread = EngineThread(
        lambda emit: Engine(backend, NoProposer(), emit, n_slots=1), n_ctx=backend.n_ctx, profile=path
    )
    thread.start()
    generation = thread.submit(GenerationRequest([1, 2, 3], max_tokens=5))
    async for _ in generation:
        pass
    await asyncio.wait_for(thread.stop(), 10)
    n_steps, table = hot.hottest(marshal.loads(path.read_bytes()), 50)
    assert n_steps == 5
    assert "decode" in table
