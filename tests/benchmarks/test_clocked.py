"""A pair under a virtual clock, over the toy: no figure depends on the machine."""

from __future__ import annotations

import pytest

from benchmarks import clocked
from benchmarks.clocked import MOST_AT_ONCE, N_BRANCHES, ClockedDrafter, slowest
from benchmarks.machines import MACHINES
from benchmarks.texts import Text, write
from server.sampling.params import SamplingParams
from tests.fake_backend import FakeBackend, FakeModel

GREEDY = SamplingParams(temperature=0.0)
PROMPTS = [tuple(b"A text that nobody has begun before, number %d: " % i) for i in range(8)]
MODEL = FakeModel(eog_rate=0.0, sharpness=6.0)
N_TOKENS = 60


class Watchable(FakeBackend):
    """A backend that has slots and more, so that run() can see its decodes."""


def backend(error: float = 0.2) -> FakeBackend:
    model = FakeModel(error=error, eog_rate=0.0, sharpness=6.0)
    return Watchable(model, n_seqs=MOST_AT_ONCE + N_BRANCHES)


@pytest.fixture(scope="module")
def known() -> list[Text]:
    return write(FakeBackend(MODEL, n_seqs=2), PROMPTS, GREEDY, N_TOKENS)


def test_perfect_drafter_sets_the_pace(known: list[Text]):
    found = clocked.run(ClockedDrafter(backend(0.0), 4.0), known, at_once=1)
    assert found.empty < 0.1
    assert 3.0 < found.speedup < found.per_step < 5.0


def test_a_faster_drafter_brings_more(known: list[Text]):
    slow, quick = (clocked.run(ClockedDrafter(backend(), r), known, 1) for r in (4.0, 16.0))
    assert 1.0 < slow.speedup < quick.speedup
    assert quick.per_step > slow.per_step


def test_distance_costs_fast_targets_more(known: list[Text]):
    def gain(tt_ms: int, latency_ms: int) -> float:
        drafter = ClockedDrafter(backend(), 8.0, tt_us=1000 * tt_ms, latency_us=1000 * latency_ms)
        return clocked.run(drafter, known, 1).speedup - 1

    slow, quick = ([gain(tt_ms, latency_ms) for latency_ms in (0, 10, 50)] for tt_ms in (100, 10))
    for gains in (slow, quick):
        assert gains == sorted(gains, reverse=True)
    assert quick[1] / quick[0] < slow[1] / slow[0]
    assert quick[2] / quick[0] < slow[2] / slow[0]


def test_distant_drafter_gains_little(known: list[Text]):
    drafter = ClockedDrafter(backend(), 8.0, latency_us=10 * clocked.TT_US)
    assert 0.9 < clocked.run(drafter, known, 1).speedup < 1.1


def test_dear_rows_limit_bad_drafters(known: list[Text]):
    machine = MACHINES["400M BF16"]
    for error, r, latency_ms in ((0.9, 8.0, 0), (0.2, 2.0, 1000)):
        tt_us = round(1000 * machine.curve[1])
        drafter = ClockedDrafter(backend(error), r, tt_us=tt_us, latency_us=1000 * latency_ms)
        assert 0.95 < clocked.run(drafter, known, 1, machine).speedup < 1.1


def test_nothing_is_left_to_chance(known: list[Text]):
    first, again = (clocked.run(ClockedDrafter(backend(), 8.0), known, 4) for _ in range(2))
    assert first == again


@pytest.mark.parametrize("r", [4.0, 16.0])
def test_of_four_sessions_none_falls_far_behind(known: list[Text], r: float):
    found = clocked.run(ClockedDrafter(backend(), r), known, 4)
    assert len(found.rates) == len(known)
    assert slowest(found.rates, 4) > 0.8


def test_slowest_reply_uses_concurrent_mean():
    assert slowest({0: 1.0, 1: 3.0, 2: 2.0, 3: 2.0}, 2) == (0.5 + 1.0) / 2
