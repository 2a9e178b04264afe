"""Sessions for which nobody guesses are passed over together, and no draft model follows them in vain."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from server.engine.proposer import Ask, OpenedSession, Plan, Proposer, Step, Upcoming
from server.engine.request import Speculation
from server.llama.backend import Batch, Logits
from server.sampling.draft_token import DraftGuess
from server.sampling.params import SamplingParams
from server.speculation.drafter_host import BASELINE_STEPS
from server.speculation.hits import HitRates, SessionHitRates
from server.speculation.policy import Policy
from server.speculation.sources.draft_model import DraftModel
from server.speculation.speculated import Speculated
from server.speculation.speculator import Speculator
from server.speculation.step import DraftPlan, Guessers
from server.speculation.step_times import StepTimes
from server.speculation.view import View
from tests.fake_backend import FakeBackend, FakeVocabulary
from tests.server.engine.grammar_of_lists import OneOf
from tests.server.speculation.driving import ask, committed
from tests.server.speculation.ledger_scene import TIMING
from tests.server.speculation.test_speculator import MODEL, Clock, Scene, TimedBackend
from tests.support import PROMPT, Harness, request


def is_asked(speculator: Speculator) -> bool:
    """Return True if sources are asked for guesses in a step of one session."""
    session, tokens = 1, list(PROMPT)
    if session not in speculator._sessions:
        speculator.open(OpenedSession(session, tokens, request().sampling, Speculation()))
    return ask(speculator, Ask(session, 4)).asked


def test_nobody_guessing_asks_no_sessions():
    speculator = Speculator(Policy(lookup=False))
    assert not is_asked(speculator)
    expects = Speculation(prediction=(1, 2))
    speculator.open(OpenedSession(2, list(PROMPT), request().sampling, expects))
    assert is_asked(speculator), "a client expects a reply"
    speculator.close(2, keep=False)
    assert not is_asked(speculator)
    looking = Speculator(Policy())
    for _ in range(BASELINE_STEPS):
        assert not is_asked(looking), "lookups wait until it is known what steps take without them"
        committed(looking, timing=TIMING)
    assert is_asked(looking)
    assert is_asked(Speculator(Policy(lookup=False, gate=False)))


def test_pausing_draft_model_is_skipped(monkeypatch: pytest.MonkeyPatch):
    """It continues within the reply."""
    scene = Scene(error=0.0, row_s=0.5)
    n_passed, plan = 0, scene.speculator.plan

    def count(step: Upcoming) -> DraftPlan:
        nonlocal n_passed
        made = plan(step)
        n_passed += bool(step.n_deciding) and not made.asked
        return made

    monkeypatch.setattr(scene.speculator, "plan", count)
    scene.drafts.confused = 1.0
    scene.harness.run(request(max_tokens=400))
    assert n_passed > 100
    assert max(scene.target.widths[100:]) > 1, "it was asked again"


def test_worthless_guesses_follow_no_session(monkeypatch: pytest.MonkeyPatch):
    """A guess pays if eight sessions share its time, not for the two whose prompts were read first.

    Reading what is new of these, two rows in each step, would bring nothing.
    """
    scene = Scene(error=0.3, row_s=0.02, td_s=0.5, policy=Policy(lookup=False))
    scene.drafts.n_batch = 2 * len(PROMPT)  # one slice takes a whole prompt
    steps = [""]
    read, guess, decode = DraftModel.read, DraftModel.guess, scene.target.decode

    def noted_read(self: DraftModel, session: int, most: int) -> int:
        steps[-1] += "r"
        return read(self, session, most)

    def noted_guess(self: DraftModel, sessions: Sequence[int], **how: bool) -> list[DraftGuess | None]:
        steps[-1] += "g"
        return guess(self, sessions, **how)

    def noted_decode(batch: Batch) -> Logits:
        steps.append("")
        return decode(batch)

    monkeypatch.setattr(DraftModel, "read", noted_read)
    monkeypatch.setattr(DraftModel, "guess", noted_guess)
    monkeypatch.setattr(scene.target, "decode", noted_decode)
    scene.harness.run(*(request((*PROMPT, i), max_tokens=80) for i in range(8)))
    assert steps.count("") > 100, "it rests for most of the time"
    assert any("rg" in step for step in steps)
    assert not [step for step in steps if step.endswith("r")]


def test_unprofitable_session_delays_no_reading():
    """The first session has the fewest tokens to evaluate, but its guesses are wrong.

    Guesses have brought nothing yet, so that one session is read.
    """
    clock = Clock()
    drafts = TimedBackend(clock, MODEL, 0.05, 0.0)
    speculator = Speculator(Policy(), inline=DraftModel(drafts, clock=clock), clock=clock)
    inline = speculator._inline
    assert inline is not None
    inline.model.rehearse()
    sessions = list[Speculated]()
    for id in (1, 2, 3):
        session = OpenedSession(id, [1] * (3 + id), SamplingParams(), Speculation())
        speculator.open(session)
        sessions.append(one := speculator._sessions[id])
        one.hits = SessionHitRates(HitRates())
        for _ in range(200):
            one.hits.observe_best("draft", 200, hit=id > 1)
    asks, seconds = [Ask(id, 8) for id in (1, 2, 3)], [0.0, 1.0, 1.0, 1.0, *[1.3] * 30]
    view = View(Policy(), asks, sessions, StepTimes(4), 3, seconds, 1.0, 3.0, guessers=Guessers(inline=True))
    inline.draft(view, None)
    assert view.drafting is not None
    paths = view.drafting.paths
    assert [bool(paths[id].tokens) if id in paths else False for id in (1, 2, 3)] == [False, True, False]


def test_losing_short_replies_are_skipped():
    """Each would end before the draft model rests in it. Later it is asked again."""
    scene = Scene(error=0.0, row_s=0.1, td_s=0.3, policy=Policy(leaves=1, lookup=False))
    scene.drafts.confused = 1.0

    def n_drafts(n_tokens: int) -> int:
        n_before = len(scene.drafts.widths)
        scene.harness.run(request(max_tokens=n_tokens))
        return len(scene.drafts.widths) - n_before

    tried = [n_drafts(12) > 0 for _ in range(100)]
    n_at_first = tried.index(False)
    assert 5 <= n_at_first <= 10
    later = tried[n_at_first:]
    assert not any(later[:60])
    assert 0 < sum(later) <= 10
    scene.drafts.confused = 0.0
    assert [n_drafts(400) for _ in range(20)][-1] > 300


def test_stable_losses_stay_their_own():
    """Width-stable sessions have their width in any case."""
    scene = Scene(error=0.0, row_s=0.1, td_s=0.3, policy=Policy(leaves=1, lookup=False))
    scene.drafts.confused = 1.0
    stable = replace(request(max_tokens=12), speculation=Speculation(exactness="width-stable"))
    for _ in range(80):
        scene.harness.run(stable)
    for _ in range(3):
        n_before = len(scene.drafts.widths)
        scene.harness.run(request(max_tokens=12))
        assert len(scene.drafts.widths) > n_before


class Resting(Proposer):
    """A source that guesses for sessions with a grammar only, and records what it is asked and told."""

    def __init__(self) -> None:
        self.asked, self.told, self.n_passed = list[Ask](), list[int](), 0

    def plan(self, step: Upcoming) -> Plan:
        asked = bool(step.n_deciding) and step.has_grammar
        self.n_passed += bool(step.n_deciding) and not asked
        self.asked += step.asks() if asked else ()
        return Plan(asked=asked)

    def learn(self, step: Step) -> None:
        self.told += [outcome.session for outcome in step.outcomes]


def test_nobody_guessing_tells_nothing():
    proposer = Resting()
    Harness(FakeBackend(MODEL), proposer).run(*(request((*PROMPT, i), max_tokens=9) for i in range(2)))
    assert proposer.n_passed >= 9
    assert proposer.asked == proposer.told == []


def test_grammar_guesses_without_other_sources():
    proposer = Resting()
    ruled = replace(request(max_tokens=9), constraint=lambda: OneOf([(5,) * 20], FakeVocabulary.size))
    Harness(FakeBackend(MODEL), proposer).run(request(max_tokens=20), ruled)
    assert {ask.limit > 0 for ask in proposer.asked if ask.session == 2} == {True, False}
    assert proposer.told.count(2) == 9
    assert proposer.n_passed >= 10, "once that session has ended"
