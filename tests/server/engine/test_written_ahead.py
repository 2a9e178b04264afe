"""Conversations that rest are on disk before their lead is killed, for another lead or the next start."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from server.cache.files import RESCAN_NS, DiskTier
from server.cache.snapshots import Snapshots
from server.engine.request import GenerationRequest
from server.engine.residence import SHARE_NEW
from server.engine.scheduler import Limits
from server.sampling.params import SamplingParams
from tests.checks import check_snapshots
from tests.fake_backend import FakeBackend
from tests.support import Harness, until

ENOUGH = 1 << 26
WAIT_S = 20.0
LIMITS = Limits(n_batch=64, n_chunk=16, leaves=1)
BYTES = 8  # of a token's state
MORE = [7, 8, 9]


def prompt(i: int, length: int = 100) -> list[int]:
    return [(i * 37 + j * 11) % 200 + 1 for j in range(length)]


class Watched(FakeBackend):
    """A backend that counts the states it is asked for, and their bytes."""

    n_saved = 0
    n_bytes = 0

    def save(self, seq: int) -> bytes:
        data = super().save(seq)
        self.n_saved += 1
        self.n_bytes += len(data)
        return data


class Lead:
    """An engine over a directory that others use too."""

    def __init__(self, directory: Path, memory_bytes: int = ENOUGH, n_seqs: int = 4) -> None:
        self._ready = threading.Event()
        self._ahead_ns = 0
        self.disk = DiskTier(directory, budget_bytes=ENOUGH, fingerprint="fake", clock=self._clock)
        self.tiers = Snapshots(memory_bytes=memory_bytes, disk=self.disk, on_ready=self._ready.set)
        self.backend = Watched(n_seqs=n_seqs, n_cells=1 << 14)
        self.harness = Harness(self.backend, snapshots=self.tiers, n_slots=1, limits=LIMITS)
        self.engine = self.harness.engine
        self.engine.residence.move_costs.token_s.value = 1.0  # loading always pays

    def ask(self, tokens: Sequence[int], salt: str = "", max_tokens: int = 8) -> tuple[list[int], int]:
        """Return the reply, and how much of the prompt was cached."""
        sampling = SamplingParams(1.0, seed=3)
        request = GenerationRequest(list(tokens), sampling, max_tokens, salt=salt)
        (id,) = self.harness.submit(request)
        while not (outcome := self.harness.outcomes[id]).ended:
            self._ready.clear()
            if not self.engine.step() and not outcome.ended:
                assert self._ready.wait(WAIT_S)
        return list(outcome.tokens), outcome.started.n_cached

    def rest(self) -> int:
        """Do all that an idle lead does, a second later, and return how many states it fetched."""
        self._ahead_ns += RESCAN_NS
        self.engine.step()
        before = self.backend.n_saved
        until(lambda: not self.engine.residence.copy_ahead(), "it never rests")
        assert self.tiers.flush(WAIT_S) == 0
        check_snapshots(self.tiers)
        return self.backend.n_saved - before

    def kill(self) -> None:
        """End the lead without saving anything more."""
        self.tiers.close()

    def _clock(self) -> int:
        return 1_800_000_000_000_000_000 + self._ahead_ns


@pytest.fixture
def start(tmp_path: Path) -> Generator[Callable[..., Lead]]:
    """Yield a function that starts leads sharing a directory."""
    with ExitStack() as ending:

        def start(**more: int) -> Lead:
            lead = Lead(tmp_path / "shared", **more)
            ending.callback(lead.kill)
            return lead

        yield start


@pytest.mark.parametrize("memory_bytes", [0, ENOUGH])
def test_killed_lead_passes_conversations_on(start: Callable[..., Lead], memory_bytes: int):
    one, two = start(memory_bytes=memory_bytes), start(memory_bytes=memory_bytes)
    history = prompt(0)
    for _ in range(10):
        reply, _ = one.ask(history)
        history += [*reply, *MORE]
        one.rest()
        two.rest()  # idle all the time
    one.kill()
    two.rest()
    reply, n_cached = two.ask(history)
    assert n_cached * SHARE_NEW >= len(history) * (SHARE_NEW - 1)
    assert reply == start().ask(history)[0]


def test_alternating_leads_share_files(start: Callable[..., Lead], tmp_path: Path):
    leads, history = (start(), start()), prompt(0)
    cached = list[float]()
    for turn in range(8):
        reply, n_cached = leads[turn % 2].ask(history)
        cached.append(n_cached / len(history))
        history += [*reply, *MORE]
        for lead in leads:
            lead.rest()
    assert cached[0] == 0
    assert min(cached[1:]) >= 1 - 1 / SHARE_NEW
    assert len(list((tmp_path / "shared").iterdir())) == 1, "the shorter ones went"


def test_growing_conversation_is_written_boundedly(start: Callable[..., Lead]):
    lead, history = start(memory_bytes=0), prompt(0)
    for _ in range(80):
        reply, _ = lead.ask(history)
        history += [*reply, *MORE]
        lead.rest()
    assert lead.backend.n_bytes < SHARE_NEW * BYTES * len(history)
    assert lead.backend.n_saved < 30


def test_all_that_rest_are_written_once(start: Callable[..., Lead]):
    lead = start()
    for i in range(3):
        lead.ask(prompt(i), salt="abc"[i])
    assert lead.rest() == 3
    assert lead.rest() == 0
    assert (lead.backend.n_saved, lead.tiers.counters().disk_snapshots) == (3, 3)


def test_equally_long_successor_is_written(start: Callable[..., Lead]):
    """How its predecessor left does not matter."""
    lead = start(n_seqs=1, memory_bytes=0)
    lead.ask(prompt(0))
    assert lead.rest() == 1
    lead.ask(prompt(1))
    assert lead.rest() == 1
    lead.engine.residence.erase(0)
    lead.ask(prompt(2))
    assert lead.rest() == 1
    assert lead.engine.residence.evict()
    lead.ask(prompt(3))
    assert lead.rest() == 1
    lead.kill()
    after = start()
    for i in range(4):
        assert after.ask([*prompt(i), 7])[1] >= 99


def test_refusing_disk_is_tried_once(start: Callable[..., Lead]):
    lead = start(memory_bytes=0)
    lead.disk.budget_bytes = 10
    lead.ask(prompt(0))
    assert lead.rest() == 1
    assert lead.rest() == 0
    lead.ask([*prompt(0), *prompt(1)])
    assert lead.rest() == 1
    assert lead.tiers.counters().failed_writes == 2


def test_writing_ahead_evicts_nothing(start: Callable[..., Lead]):
    lead = start(n_seqs=2, memory_bytes=BYTES * 107 * 2)
    for i in range(5):
        lead.ask(prompt(i))
        lead.rest()
    assert lead.ask([*prompt(1), 7])[1] >= 99
    assert lead.tiers.counters().evicted_from_disk == 0
    assert lead.tiers.counters().lost == 0


def test_a_lead_hears_what_another_one_saves(start: Callable[..., Lead]):
    one, two = start(), start()
    heard = list[Sequence[int]]()
    two.tiers.hear("a", heard.extend)
    one.ask(prompt(0), salt="a")
    one.ask(prompt(1), salt="b")
    two.ask(prompt(2), salt="a")
    one.rest()
    two.rest()
    assert [list(tokens[:100]) for tokens in heard] == [prompt(0)]
