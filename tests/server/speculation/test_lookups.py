"""What lookups index, in which time, and what time they are charged for."""

from __future__ import annotations

import pytest

from server.engine.proposer import Ask, OpenedSession, TimedStep
from server.engine.request import Speculation
from server.estimators import Median
from server.sampling.params import SamplingParams
from server.speculation.gating.balance import KNOWN
from server.speculation.gating.costs import StepCosts
from server.speculation.gating.credit import CREDIT
from server.speculation.gating.pricing import StepPrice
from server.speculation.groups import LOOKUP, Groups, StepCharge
from server.speculation.lookups import INDEX_SHARE, INDEXED, Lookups, index
from server.speculation.policy import Policy
from server.speculation.speculated import Speculated
from server.speculation.speculator import Speculator
from tests.server.speculation.test_groups import STEP, unknown, watched
from tests.server.speculation.test_speculated import conversation
from tests.server.speculation.test_speculator import Clock


class Text:
    """Misses n tokens, each of which takes a second."""

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
def test_lookups_of_many_sessions_share_what_a_step_has_time_for(seconds: float, left: list[int]):
    clock = Clock()
    texts = [Text(n, clock) for n in (100, 100, 10, 10)]
    index(texts, clock() + seconds, clock)
    assert [one.n_left for one in texts] == left


def test_small_texts_are_indexed_together_although_there_is_no_time():
    clock = Clock()
    texts = [Text(1, clock) for _ in range(2 * INDEXED)]
    index(texts, clock(), clock)
    assert sum(one.n_left for one in texts) == INDEXED


@pytest.mark.parametrize("n_waiting", [0, 63])
def test_a_step_has_time_for_a_twentieth_of_itself_however_many_sessions_wait(
    n_waiting: int, monkeypatch: pytest.MonkeyPatch
):
    clock = Clock()
    sessions = {i: conversation(10_000) for i in range(1 + n_waiting)}
    lookups = Lookups(sessions, clock, guesses=True, overlaps=True)

    def timed(_: Speculated, most: int) -> int:
        clock.now += 1e-5 * most
        return most

    monkeypatch.setattr(Speculated, "index", timed)
    began = clock()
    lookups.index(1.0)
    assert clock() - began == pytest.approx(INDEX_SHARE, abs=1e-5 * INDEXED)


@pytest.mark.parametrize("overlaps", [False, True])
def test_indexing_is_charged_unless_a_gpu_decodes_meanwhile(overlaps: bool, monkeypatch: pytest.MonkeyPatch):
    clock, session = Clock(), conversation(100)
    lookups = Lookups({1: session}, clock, guesses=True, overlaps=overlaps)

    def slow(_: Speculated, most: int) -> int:
        clock.now += 1.0
        return most

    monkeypatch.setattr(Speculated, "index", slow)
    lookups.index(0.0)
    assert lookups.taken_s(STEP) == (0.0 if overlaps else 1.0)
    assert lookups.taken_s(STEP) == 0.0


def test_where_nobody_else_guesses_what_steps_take_longer_with_them_is_charged():
    """A step takes 2 s outside its decode where nobody is asked, 5 s where lookups are, for 1 of them."""
    lookups = Lookups({}, Clock(), guesses=True, overlaps=False)
    quiet, asked = (TimedStep(2, 9, 1.0, 1.0 + outside_s, 2, 2) for outside_s in (2.0, 5.0))
    lookups.alone = True

    def taken_s(*, alone: bool = True) -> float:
        lookups.alone = alone
        lookups.took(-1.0)
        return lookups.taken_s(asked)

    assert taken_s() == 1.0, "nothing is known of others"
    for _ in range(KNOWN):
        assert lookups.taken_s(quiet, n_passed=1) == 0.0
    assert taken_s() == 3.0
    assert taken_s(alone=False) == 1.0
    lookups.alone = True
    assert lookups.taken_s(asked, n_asked=3) == 9.0, "two steps more, which prompts were in"
    assert lookups.taken_s(asked, 4.0) == 0.0, "a draft model took the rest"


@pytest.mark.parametrize(("others", "charged"), [(False, 4.0), (True, 1.0)])
def test_choosing_is_charged_where_nobody_else_guesses_and_searching_where_somebody_does(
    others: bool, charged: float, monkeypatch: pytest.MonkeyPatch
):
    """To search a text takes a second, and three seconds to choose among guesses."""
    clock = Clock()
    speculator = Speculator(Policy(gate=True), clock=clock, costs=StepCosts(64, {1: 1.0, 2: 1.1}))
    speculator.open(OpenedSession(1, [1, 2, 3, 1, 2], SamplingParams(), Speculation()))
    groups, took = speculator.groups, list[float]()
    assert groups is not None
    watched(groups)
    monkeypatch.setattr(Groups, "models_rest", property(lambda _: not others))

    def search(*_: object) -> None:
        clock.now += 1.0

    def price(*_: object, **__: object) -> StepPrice:
        clock.now += 3.0
        return StepPrice(1, 0, [1.0] * 64, 1.0, 1.0, 1)

    monkeypatch.setattr(Speculated, "look_up", search)
    monkeypatch.setattr(speculator.pricing, "step", price)
    speculator.drain(1)
    planned = speculator.propose([Ask(1, 4)], 1, 0)

    def heard(_: TimedStep, charge: StepCharge) -> None:
        took.append(charge.looked)

    monkeypatch.setattr(groups, "stepped", heard)
    speculator.stepped(planned, TimedStep(1, 9, 1.0, 1.0, 1, 1))
    assert took == [pytest.approx(charged * speculator.pricing.plain_rate)]


def test_lookups_that_rest_index_nothing_but_what_ended():
    session = conversation(10)
    lookups = Lookups({1: session}, Clock(), guesses=False, overlaps=False)
    session.lookup = lookups.open("")
    lookups.index(0.0)
    assert session.is_behind
    session.session.tokens.extend([1, 2, 3, 4])  # pyright: ignore
    lookups.close(session)
    lookups.index(0.0)
    other = conversation(0)
    other.lookup = lookups.open("")
    other.session.tokens.extend([1, 2, 3])  # pyright: ignore
    other.index(3)
    other.look_up(1)
    assert other.tree.n_below == 1


def test_lookups_that_guess_beside_a_model_before_they_were_seen_to_rest_are_weighed_as_well():
    groups = Groups(None, Median(1), lookup=True)
    n_on = 0
    for _ in range(100):
        groups.serve(1, unknown)
        n_on += groups.lookup_guesses
        groups.stepped(STEP, StepCharge(looked=0.5))
    assert groups.model_guesses
    assert n_on == CREDIT / 0.5 + 1


@pytest.mark.parametrize(("looked", "rest"), [(0.01, False), (0.05, True)])
def test_lookups_rest_where_searching_takes_more_than_they_bring(looked: float, rest: bool):
    """One of 32 steps has a right guess of theirs, whose row takes a tenth of a step."""
    groups = Groups(None, lookup=True)
    watched(groups)
    for i in range(1000):
        groups.serve(1, unknown)
        if i % 32 == 31 and groups.lookup_guesses:
            groups.count({LOOKUP: (1, 1)}, 0.1)
        groups.stepped(TimedStep(1, 9, 1.0, 1.0, 1, 1), StepCharge(looked=looked))
    assert groups.lookup_guesses is not rest
