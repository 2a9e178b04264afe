"""Steps for which nobody has a guess cost little, though sources are awake."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from server.engine.proposer import Ask, OpenedSession, Planned
from server.engine.request import Speculation
from server.sampling.params import SamplingParams
from server.speculation.gating.costs import StepCosts
from server.speculation.gating.pricing import Pricing, StepPrice
from server.speculation.groups import Groups
from server.speculation.policy import Policy
from server.speculation.speculator import Speculator
from server.speculation.wire.messages import ROOT, Draft, Open
from tests.server.speculation.sources.test_remote import Scene
from tests.server.speculation.test_groups import watched
from tests.support import PROMPT


@pytest.fixture
def priced(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of sessions of each step that was priced."""
    steps, step = list[int](), Pricing.step

    def counted(self: Pricing, n_sessions: int, *of_it: int, may_pad: bool, allowance: float) -> StepPrice:
        steps.append(n_sessions)
        return step(self, n_sessions, *of_it, may_pad=may_pad, allowance=allowance)

    monkeypatch.setattr(Pricing, "step", counted)
    return steps


def speculator() -> Speculator:
    """One whose lookups guess."""
    made = Speculator(Policy(), costs=StepCosts(64, {1: 1.0, 2: 1.1, 4: 1.2}))
    assert made.groups is not None
    watched(made.groups)
    return made


def propose(speculator: Speculator, *sessions: tuple[Sequence[int], Ask]) -> Planned:
    """Guesses for sessions with these tokens."""
    for tokens, ask in sessions:
        speculator.open(OpenedSession(ask.session, list(tokens), SamplingParams(), Speculation()))
    speculator.drain(len(sessions))
    return speculator.propose([ask for _, ask in sessions], len(sessions), 0)


def test_a_step_is_not_priced_where_nobody_has_a_guess(priced: list[int]):
    planned = propose(speculator(), ([1, 2, 3], Ask(1, 4)), ([4, 5, 6], Ask(2, 4)))
    assert list(map(bool, planned.proposals)) == [False, False]
    assert not priced


@pytest.mark.parametrize(
    ("tokens", "ask"),
    [
        pytest.param([1, 2, 3, 1, 2], Ask(2, 4), id="a text that repeats itself"),
        pytest.param([1, 2, 3], Ask(2, 4, forced=(7,)), id="a grammar"),
    ],
)
def test_one_session_with_a_guess_has_the_step_priced(tokens: list[int], ask: Ask, priced: list[int]):
    planned = propose(speculator(), ([4, 5, 6], Ask(1, 4)), (tokens, ask))
    assert list(map(bool, planned.proposals)) == [False, True]
    assert priced == [2]


def test_an_expected_reply_has_the_step_priced(priced: list[int]):
    lead = speculator()
    expected = Speculation(prediction=(7, 8, 9))
    lead.open(OpenedSession(1, [1, 2, 3], SamplingParams(), expected))
    lead.drain(1)
    assert any(lead.propose([Ask(1, 4)], 1, 0).proposals)
    assert priced == [1]


def test_a_drafter_s_guess_that_came_has_the_step_priced(priced: list[int]):
    scene = Scene()
    drafter = scene.add()
    scene.open(1)
    scene.speculator.pricing.costs.observe(1, 0, 1.0)
    scene.speculator.propose([Ask(1, 4)], 1, 0)
    assert not priced
    (told,) = (message for message in drafter.messages if isinstance(message, Open))
    draft = Draft("drafter", told.session, len(PROMPT), told.chain, 900, (ROOT,), (9,), b"\xff")
    drafter.bus.send("lead", draft)
    scene.settle()
    scene.speculator.propose([Ask(1, 4)], 1, 0)
    assert priced == [1]


def test_what_a_step_begins_with_is_done_while_a_gpu_decodes_the_one_before(monkeypatch: pytest.MonkeyPatch):
    served, serve = list[int](), Groups.serve

    def counted(self: Groups, n_active: int, curve: object, *, padded: bool) -> None:
        served.append(n_active)
        serve(self, n_active, lambda _: [], padded=padded)

    monkeypatch.setattr(Groups, "serve", counted)
    lead = Speculator(Policy(overlaps=True))
    lead.drain(2)
    lead.meanwhile()
    assert served == [2, 2]
    lead.drain(2)
    assert served == [2, 2], "it was done"
    lead.drain(2)
    assert served == [2, 2, 2], "nothing was decoded since"
    lead.meanwhile()
    lead.drain(3)
    assert served == [2, 2, 2, 2, 3], "a session more has come"


def test_guesses_that_come_after_that_are_taken_in(monkeypatch: pytest.MonkeyPatch):
    scene, taken = Scene(overlaps=True), list[str]()
    monkeypatch.setattr(scene.remote, "take_in", lambda: taken.append("in"))
    scene.speculator.drain(1)
    scene.speculator.meanwhile()
    assert len(taken) == 2
    scene.speculator.drain(1)
    assert len(taken) == 3
