"""What lookups index, in which time, and what time they are charged for."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

from unittest.mock import Mock

import pytest

from server.engine.proposer import Ask, OpenedSession, StepTiming
from server.engine.request import Speculation
from server.estimators import Median
from server.sampling.params import SamplingParams
from server.speculation import planner
from server.speculation.drafter_host import BASELINE_STEPS, CREDIT
from server.speculation.lookups import INDEX_SHARE, Lookups, index
from server.speculation.policy import Policy
from server.speculation.rates import KNOWN
from server.speculation.speculated import INDEXED, Speculated
from server.speculation.speculator import Speculator
from server.speculation.step import LOOKUP, DraftPlan, Guessers
from server.speculation.step_times import StepTimes
from server.speculation.tree import ScoredTree
from tests.server.speculation.driving import ask, take_in
from tests.server.speculation.ledger_scene import Taught
from tests.server.speculation.test_speculated import conversation
from tests.server.speculation.test_speculator import Clock


class Text:
    """A text that lacks n tokens, each of which takes a second to index."""

    def __init__(self, n: int, clock: Clock) -> None:
        self.n_left, self.clock = n, clock

    def index(self, most: int) -> int:
        n = min(most, self.n_left)
        self.n_left -= n
        self.clock.now += n
        return n


@pytest.mark.parametrize(
    ("seconds", "left"),
    [
        (0.0, [100 - INDEXED, 100, 10, 10]),
        (INDEXED + 1.0, [0, 100, 10, 10]),
        (101.0, [0, 100 - INDEXED, 10, 10]),
        (205.0, [0, 0, 0, 10]),
        (300.0, [0, 0, 0, 0]),
    ],
)
def test_sessions_share_lookup_time(seconds: float, left: list[int]):
    clock = Clock()
    texts = [Text(n, clock) for n in (100, 100, 10, 10)]
    index([one.index for one in texts], clock() + seconds, clock)
    assert [one.n_left for one in texts] == left


def test_small_texts_index_despite_time():
    clock = Clock()
    texts = [Text(1, clock) for _ in range(2 * INDEXED)]
    index([one.index for one in texts], clock(), clock)
    assert sum(one.n_left for one in texts) == INDEXED


@pytest.mark.parametrize("n_waiting", [0, 63])
def test_lookups_take_twentieth_of_step(n_waiting: int, monkeypatch: pytest.MonkeyPatch):
    clock = Clock()
    sessions = {i: conversation(10_000) for i in range(1 + n_waiting)}
    lookups = Lookups(sessions, clock)

    def timed(_: Speculated, most: int) -> int:
        clock.now += 1e-5 * most
        return most

    monkeypatch.setattr(Speculated, "index", timed)
    began = clock()
    lookups.index(1.0, guesses=True)
    assert clock() - began == pytest.approx(INDEX_SHARE, abs=1e-5 * INDEXED)


@pytest.mark.parametrize("overlaps", [False, True])
def test_indexing_is_free_during_gpu(overlaps: bool, monkeypatch: pytest.MonkeyPatch):
    clock = Clock()
    speculator = Speculator(Policy(overlaps=overlaps, gate=False), clock=clock)
    speculator.open(OpenedSession(1, list(range(500)), SamplingParams(), Speculation()))

    def slow(_: Speculated, most: int) -> int:
        clock.now += 1.0
        return most

    monkeypatch.setattr(Speculated, "index", slow)
    assert take_in(speculator).lookup_s == (0.0 if overlaps else 1.0)


ALONE, BESIDE = Guessers(lookup=True), Guessers(lookup=True, inline=True)


def test_lone_lookups_pay_slower_steps():
    """A step takes 2 s outside its decode where nobody is asked, 5 s where lookups are, for 1 of them."""
    ledger = Taught(lookup=True).ledger
    quiet, asked = (StepTiming(2, 9, 1.0, 1.0 + outside_s, 2, 2) for outside_s in (2.0, 5.0))

    def lookup_s(
        guessers: Guessers, *, n_asked: int = 1, spent_s: float = 0.0, searched_s: float = 1.0
    ) -> float:
        ledger._n_passed = 0
        plan = DraftPlan(guessers=guessers, spent_s=spent_s)
        return ledger._lookup_cost_s(plan, asked, searched_s, n_asked)

    assert lookup_s(ALONE) == 1.0, "nothing is known of others"
    ledger._n_passed = 1
    for _ in range(KNOWN):
        assert ledger._lookup_cost_s(DraftPlan(asked=False), quiet, 0.0, 1) == 0.0
    assert lookup_s(ALONE) == 3.0
    assert lookup_s(BESIDE) == 1.0
    assert lookup_s(ALONE, n_asked=3) == 9.0, "two steps more, which prompts were in"
    assert lookup_s(ALONE, spent_s=4.0, searched_s=0.0) == 0.0, "a draft model took the rest"


@pytest.mark.parametrize(("guessers", "charged"), [(ALONE, 4.0), (BESIDE, 1.0)])
def test_choosing_and_searching_are_charged(
    guessers: Guessers, charged: float, monkeypatch: pytest.MonkeyPatch
):
    """Searching a text takes a second, choosing among guesses three."""
    clock = Clock()
    speculator = Speculator(Policy(), clock=clock, times=StepTimes(64, {1: 1.0, 2: 1.1}))
    speculator.open(OpenedSession(1, [1, 2, 3, 1, 2], SamplingParams(), Speculation()))
    look_up, offer = Speculated.look_up, ScoredTree.offer

    def search(one: Speculated, n: int) -> None:
        clock.now += 1.0
        look_up(one, n)

    def choose(*of_it: object, **more: object) -> object:
        clock.now += 3.0
        return offer(*of_it, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(Speculated, "look_up", search)
    monkeypatch.setattr(ScoredTree, "offer", choose)
    monkeypatch.setattr(planner, "choose_guessers", Mock(return_value=guessers))
    assert ask(speculator, Ask(1, 4)).lookup_s == pytest.approx(charged)


def test_resting_lookups_index_ended_texts():
    session = conversation(10)
    lookups = Lookups({1: session}, Clock())
    session.lookup = lookups.open("")
    lookups.index(0.0, guesses=False)
    assert session.is_behind
    session.session.tokens.extend([1, 2, 3, 4])  # pyright: ignore
    lookups.close(session)
    lookups.index(0.0, guesses=False)
    other = conversation(0)
    other.lookup = lookups.open("")
    other.session.tokens.extend([1, 2, 3])  # pyright: ignore
    other.index(3)
    other.look_up(1)
    assert other.tree.n_below == 1


def test_warm_up_lookups_are_accounted():
    taught, n_on = Taught(td=Median(1), lookup=True), 0
    taught.ledger.rates.learn = Mock()
    taught.ledger.rates.undrafted_rate = 1.0
    for _ in range(100):
        n_on += taught.serve().lookup
        taught.learn(lookup_s=0.5)
    assert taught.serve().inline
    assert n_on == CREDIT / 0.5 + 1


@pytest.mark.parametrize(("lookup_s", "pause"), [(0.01, False), (0.05, True)])
def test_unprofitable_lookups_pause(lookup_s: float, pause: bool):
    """One of 32 steps has a right guess of a lookup, whose row takes a tenth of a step."""
    taught = Taught(lookup=True)
    taught.warm_up(BASELINE_STEPS)
    taught.ledger.rates.undrafted_rate = 1.0
    taught.ledger.rates.learn = Mock()
    for i in range(1000):
        right = taught.serve().lookup and i % 32 == 31
        taught.learn(None, {LOOKUP: (1, 1)} if right else {}, guess_cost=0.1, lookup_s=lookup_s)
    assert taught.serve().lookup is not pause
