"""What an idle engine does for what may come, and when."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from server.cache.snapshots import Snapshots
from server.engine import thread as engine_thread
from server.engine.engine import Engine
from server.engine.request import GenerationRequest
from server.engine.thread import EngineThread
from tests.fake_backend import FakeBackend
from tests.support import Harness, NoProposer, request


def _no_sleep(seconds: float) -> None: ...


class Tidying:
    """An idle engine with two pieces of preparation of 8 s each."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.n_done, self.n_parts = 100.0, 0, 2
        clock = SimpleNamespace(monotonic=lambda: self.now, sleep=_no_sleep)
        monkeypatch.setattr(engine_thread, "time", clock)
        backend = FakeBackend()
        self.thread = EngineThread(lambda emit: Engine(backend, NoProposer(), emit), n_ctx=backend.n_ctx)
        monkeypatch.setattr(self.thread.engine.residence, "copy_ahead", self._copy_ahead)
        self.n_steps, self._step = 0, self.thread.engine.step
        monkeypatch.setattr(self.thread.engine, "step", self._counted)

    def _copy_ahead(self) -> bool:
        self.n_done += 1
        self.now += 8.0
        return self.n_done <= self.n_parts

    def _counted(self) -> bool:
        self.n_steps += 1
        return self._step()

    async def n_done_at(self, now: float) -> int:
        """Return the pieces done by `now`, after commands that bring no work and two looks."""
        self.now, n_steps = now, self.n_steps
        while self.n_steps < n_steps + 3:
            await self.thread.ask(lambda engine: None)
        return self.n_done


async def test_idle_preparation_pauses_in_proportion(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(engine_thread, "PAUSE_S", 3.0)
    tidying = Tidying(monkeypatch)
    tidying.thread.start()
    assert await tidying.n_done_at(100.0) == 0
    assert await tidying.n_done_at(102.9) == 0, "a command does not cut the pause short"
    assert await tidying.n_done_at(103.0) == 1
    assert await tidying.n_done_at(118.9) == 1, "it began at 103 and took 8"
    assert await tidying.n_done_at(119.0) == 2
    assert await tidying.n_done_at(200.0) == 3
    assert await tidying.n_done_at(300.0) == 3, "nothing was left to do"
    tidying.n_parts = 9
    async for _ in tidying.thread.submit(request(max_tokens=2)):
        pass
    assert await tidying.n_done_at(300.0) == 3
    assert await tidying.n_done_at(307.9) == 3, "the latest part took 8"
    assert await tidying.n_done_at(308.0) == 4
    await tidying.thread.stop()


@pytest.mark.parametrize("pays", [False, True])
def test_copy_is_made_if_loading_pays(pays: bool):
    found = Harness(FakeBackend(), snapshots=Snapshots(memory_bytes=1 << 24), n_slots=1)
    found.run(GenerationRequest(list(range(1, 101)), max_tokens=8))
    costs = found.engine.residence.move_costs
    while not pays and costs.copying_pays:
        costs.moved(1000, 1, 1.0)
    assert found.engine.residence.copy_ahead() is pays
    assert bool(found.engine.residence.copies) is pays
