"""A lead that starts again: it knows what it had learned, and has at hand what may be continued next."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from server.cache.files import DiskTier
from server.cache.snapshots import Snapshots
from server.engine.engine import Engine
from server.engine.move_costs import MoveCosts
from server.engine.proposer import NoProposer
from server.engine.request import GenerationRequest
from server.engine.residence import Residence
from server.engine.scheduler import Limits
from server.engine.thread import EngineThread, Observer
from server.sampling.params import SamplingParams
from tests.fake_backend import FakeBackend
from tests.support import Harness

ENOUGH = 1 << 24
WAIT_S = 20.0
LIMITS = Limits(n_batch=64, n_chunk=16, leaves=1)


def prompt(i: int, length: int = 100) -> list[int]:
    return [(i * 37 + j * 11) % 200 + 1 for j in range(length)]


def ask(tokens: list[int], max_tokens: int = 8) -> GenerationRequest:
    return GenerationRequest(tokens, SamplingParams(1.0, seed=3), max_tokens)


class Watched(FakeBackend):
    """A backend that counts the states it is asked for."""

    n_saved = 0

    def save(self, seq: int) -> bytes:
        self.n_saved += 1
        return super().save(seq)


class Notes:
    """The kept costs, in memory."""

    def __init__(self) -> None:
        self.written: list[object] = []


class Life:
    """A lead's life from start to end, over a directory."""

    def __init__(self, directory: Path, n_seqs: int, memory_bytes: int, notes: Notes | None) -> None:
        self.ready = threading.Event()
        disk = DiskTier(directory, budget_bytes=ENOUGH, fingerprint="fake")
        self.tiers = Snapshots(memory_bytes=memory_bytes, disk=disk, on_ready=self.ready.set)
        self.backend = Watched(n_seqs=n_seqs, n_cells=4096)
        self.harness = Harness(self.backend, n_slots=1, limits=LIMITS)
        self.engine = self.harness.engine
        written = notes.written if notes else []
        self.engine.residence.save_to(self.tiers, written[-1] if written else None, written.append)

    @property
    def costs(self) -> MoveCosts:
        return self.engine.residence.move_costs

    def run(self, *requests: GenerationRequest) -> list[int]:
        """Run all conversations and return how much of each was cached."""
        ids = self.harness.submit(*requests)
        while not all(self.harness.outcomes[id].ended for id in ids):
            self.ready.clear()
            if not self.engine.step():
                assert self.ready.wait(WAIT_S)
        return [self.harness.outcomes[id].started.n_cached for id in ids]

    def idle(self) -> int:
        """Idle until nothing is left to prepare and return the number of preparations."""
        n = 0
        self.ready.clear()
        while self.engine.residence.copy_ahead():
            n += 1
            assert n < 1000, "never at rest"
            assert self.ready.wait(WAIT_S)
            self.ready.clear()
        return n


@contextmanager
def life(
    directory: Path, *, n_seqs: int = 3, memory_bytes: int = ENOUGH, notes: Notes | None = None
) -> Generator[Life]:
    one = Life(directory, n_seqs, memory_bytes, notes)
    try:
        yield one
        one.engine.residence.save_all(WAIT_S)
    finally:
        one.tiers.close()


def left_behind(directory: Path, n: int) -> None:
    with life(directory, n_seqs=2) as before:
        for i in range(n):
            before.run(ask(prompt(i)))


def test_latest_conversations_load_before_requests(tmp_path: Path):
    left_behind(tmp_path, 6)
    with life(tmp_path, n_seqs=3) as after:
        assert after.idle() == 3  # as many as there are places
        assert after.tiers.counters().memory_snapshots == 3
        ids = after.harness.submit(ask([*prompt(5), 7]))
        after.engine.step()  # nothing to wait for
        assert after.harness.outcomes[ids[0]].started.n_cached >= 99
        after.run()
        counters = after.tiers.counters()
        assert (counters.loads, counters.hits) == (3, 1)
        assert after.run(ask([*prompt(0), 7]))[0] >= 99  # from disk, as ever
        assert after.tiers.counters().loads == 4


def test_reading_ahead_takes_half_memory(tmp_path: Path):
    left_behind(tmp_path, 6)
    size = 8 * 107  # of each
    with life(tmp_path, n_seqs=6, memory_bytes=5 * size) as after:
        assert after.idle() == 2
        counters = after.tiers.counters()
        assert (counters.memory_snapshots, counters.evicted_from_memory) == (2, 0)
    with life(tmp_path, memory_bytes=0) as after:
        assert after.idle() == 0


def test_writing_and_reading_share_memory(tmp_path: Path):
    left_behind(tmp_path, 6)
    size = 8 * 107  # of each
    with life(tmp_path, n_seqs=6, memory_bytes=4 * size) as after:
        for i in (20, 21):
            after.run(ask(prompt(i)))
        copied = [after.engine.residence.copy_ahead() for _ in range(2)]
        assert copied == [True, True]
        assert after.backend.n_saved == 2
        after.idle()
        assert not after.engine.residence.copies
        assert after.tiers.counters().memory_snapshots == 2 + 1  # half of what they left


def test_idle_thread_prepares_then_rests(tmp_path: Path):
    left_behind(tmp_path, 4)
    disk = DiskTier(tmp_path, budget_bytes=ENOUGH, fingerprint="fake")
    tidied: list[bool] = []
    rested = threading.Event()

    class Counted(Residence):
        def copy_ahead(self) -> bool:
            tidied.append(super().copy_ahead())
            if not tidied[-1]:
                rested.set()
            return tidied[-1]

    def make(emit: Observer) -> Engine:
        engine = Engine(FakeBackend(n_seqs=3), NoProposer(), emit, n_slots=1, limits=LIMITS)
        engine.residence.__class__ = Counted
        engine.residence.save_to(tiers)
        return engine

    async def main() -> None:
        thread.start()
        assert await asyncio.to_thread(rested.wait, WAIT_S)
        n = len(tidied)
        await thread.ask(lambda engine: None)
        await thread.ask(lambda engine: None)
        assert len(tidied) == n, "once at rest, nothing is looked for again"
        assert tiers.counters().memory_snapshots == 3
        await thread.stop()

    tiers = Snapshots(memory_bytes=ENOUGH, disk=disk, on_ready=lambda: thread.command(lambda _: None))
    thread = EngineThread(make, n_ctx=1000)
    try:
        asyncio.run(main())
    finally:
        tiers.close()
    assert tidied[-1] is False
    assert tidied.count(True) <= 6, "one look at each, and one for each that came"


def learned(costs: MoveCosts) -> None:
    """Teach that a cell beside a prompt costs far more than moving it, and that loading pays."""
    for i in range(300):
        costs.evaluated(100, 100.0 + 100.0 * (i % 2), 1000 * (i % 2))
        costs.moved(8000, 1000, 1e-6)


def test_learned_costs_survive_restart(tmp_path: Path):
    notes = Notes()
    with life(tmp_path, notes=notes) as before:
        learned(before.costs)
        known = before.costs.memory()
    assert notes.written == [known]
    with life(tmp_path, notes=notes) as after:
        assert after.costs.memory() == known
    notes.written.append(["nonsense"])
    with life(tmp_path, notes=notes) as later:
        assert later.costs.memory() == MoveCosts().memory()
    assert notes.written[-1] == MoveCosts().memory()


def test_first_prompt_finds_empty_cache(tmp_path: Path):
    notes = Notes()
    with life(tmp_path, n_seqs=4, notes=notes) as before:
        before.run(ask(prompt(0)))
        learned(before.costs)
    for remembering in (True, False):
        with life(tmp_path, n_seqs=4, notes=notes if remembering else None) as after:
            assert after.run(ask([*prompt(0), 7], max_tokens=1))[0] >= 99
            cache = after.engine.residence.cache
            after.harness.submit(ask(prompt(9, 400)))
            after.engine.step()
            assert bool(cache.n_cells) is not remembering, "whether somebody rests beside it"
            after.run()


def test_stored_conversation_leaves_unsaved(tmp_path: Path):
    notes = Notes()
    with life(tmp_path, n_seqs=4, notes=notes) as before:
        before.run(ask(prompt(0), max_tokens=30))
        learned(before.costs)
    with life(tmp_path, n_seqs=4, notes=notes) as after:
        assert after.run(ask(prompt(0), max_tokens=1)) == [99]
        assert after.engine.slots.list()[0].n_past == 100  # the snapshot has more
        assert not after.engine.residence.copy_ahead(), "there is nothing to copy"
        after.run(ask(prompt(9, 400), max_tokens=1))
        assert after.backend.n_saved == 0
        assert after.run(ask([*prompt(0), 7]))[0] >= 99
        after.run(ask(prompt(8, 400), max_tokens=1))
        assert after.backend.n_saved > 0, "that went on, and the others are new"
