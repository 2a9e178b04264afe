"""Steps for which nobody has a guess cost little, though sources are awake."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

from collections.abc import Sequence

import pytest

from server.engine.proposer import Ask, OpenedSession, Upcoming
from server.engine.request import Speculation
from server.sampling.params import SamplingParams
from server.speculation.drafter_host import BASELINE_STEPS
from server.speculation.policy import Policy
from server.speculation.speculator import Speculator
from server.speculation.step import DraftPlan
from server.speculation.step_times import StepTimes
from server.speculation.view import View
from server.speculation.wire.messages import ROOT, Draft, Open
from tests.server.speculation.driving import ask as ask_for
from tests.server.speculation.driving import committed, take_in
from tests.server.speculation.ledger_scene import TIMING
from tests.server.speculation.sources.test_remote import Scene
from tests.support import PROMPT


@pytest.fixture
def priced(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the number of sessions of each step that was priced."""
    steps, view = list[int](), Speculator._view

    def counted(self: Speculator, asks: Sequence[Ask], *of_it: object) -> View:
        steps.append(len(asks))
        return view(self, asks, *of_it)  # type: ignore[arg-type]

    monkeypatch.setattr(Speculator, "_view", counted)
    return steps


def speculator() -> Speculator:
    """Return a speculator whose lookups guess."""
    made = Speculator(Policy(), times=StepTimes(64, {1: 1.0, 2: 1.1, 4: 1.2}))
    for _ in range(2 * BASELINE_STEPS):
        take_in(made)
        made.before.step, made.before.rows = Upcoming(1, 1), 1
        committed(made, timing=TIMING)
    return made


def propose(speculator: Speculator, *sessions: tuple[Sequence[int], Ask]) -> DraftPlan:
    """Return guesses for sessions with these tokens."""
    for tokens, ask in sessions:
        speculator.open(OpenedSession(ask.session, list(tokens), SamplingParams(), Speculation()))
    return ask_for(speculator, *[ask for _, ask in sessions])


def test_guessless_step_is_not_priced(priced: list[int]):
    planned = propose(speculator(), ([1, 2, 3], Ask(1, 4)), ([4, 5, 6], Ask(2, 4)))
    assert not any(planned.proposals)
    assert not priced


@pytest.mark.parametrize(
    ("tokens", "ask"),
    [
        pytest.param([1, 2, 3, 1, 2], Ask(2, 4), id="a text that repeats itself"),
        pytest.param([1, 2, 3], Ask(2, 4, forced=(7,)), id="a grammar"),
    ],
)
def test_one_guess_prices_the_step(tokens: list[int], ask: Ask, priced: list[int]):
    planned = propose(speculator(), ([4, 5, 6], Ask(1, 4)), (tokens, ask))
    assert list(map(bool, planned.proposals)) == [False, True]
    assert priced == [2]


def test_an_expected_reply_has_the_step_priced(priced: list[int]):
    lead = speculator()
    expected = Speculation(prediction=(7, 8, 9))
    lead.open(OpenedSession(1, [1, 2, 3], SamplingParams(), expected))
    assert any(ask_for(lead, Ask(1, 4)).proposals)
    assert priced == [1]


def test_arrived_guess_prices_the_step(priced: list[int]):
    scene = Scene()
    drafter = scene.add()
    scene.open(1)
    scene.speculator.ledger.times.observe(1, 0, 1.0)
    ask_for(scene.speculator, Ask(1, 4))
    assert not priced
    (told,) = (message for message in drafter.messages if isinstance(message, Open))
    draft = Draft("drafter", told.session, len(PROMPT), told.chain, 900, (ROOT,), (9,), b"\xff")
    drafter.bus.send("lead", draft)
    scene.settle()
    ask_for(scene.speculator, Ask(1, 4))
    assert priced == [1]
