"""The lead's side of the bus: a bad drafter touches nobody else."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from unittest.mock import Mock

import pytest

from server.engine.proposer import Ask, OpenedSession, Step, StepTiming
from server.engine.request import Speculation
from server.sampling.params import SamplingParams
from server.speculation import planner
from server.speculation.ledger import EVIDENCE_HEARD, Ledger
from server.speculation.policy import Policy
from server.speculation.rates import KNOWN
from server.speculation.sources.drafter_record import TELL_S, WAITS
from server.speculation.sources.remote import MAX_UNREAD, RemoteDrafters
from server.speculation.speculated import IN_SESSION
from server.speculation.speculator import Speculator
from server.speculation.step import DraftPlan
from server.speculation.wire.messages import ROOT, Close, Commit, Draft, Message, Open, Refuse, Want
from server.speculation.wire.presence import Presence, vocabulary_card
from tests.checks import is_idle
from tests.fake_backend import FakeBackend, FakeVocabulary
from tests.memory_bus import MemoryPool
from tests.server.speculation.driving import ask, committed, take_in
from tests.server.speculation.test_speculator import Clock
from tests.support import PROMPT, Harness, request

CARD = vocabulary_card(FakeVocabulary())
LEAD = Presence("lead", "lead", "toy", "0.9", CARD, 4, host="here", kernel="here")
SAMPLING = SamplingParams()


class Heard:
    """A drafter that records what it is told, and answers nothing."""

    def __init__(self, pool: MemoryPool, presence: Presence) -> None:
        self.messages: list[Message] = []
        self.bus = pool.bus(presence)
        self.bus.start(self)

    def received(self, message: Message) -> None:
        self.messages.append(message)

    def peers(self, present: Sequence[Presence]) -> None:
        pass

    def opened(self) -> list[int]:
        """Return the sessions that are open here."""
        sessions: dict[int, None] = {}
        for message in self.messages:
            if isinstance(message, Open):
                sessions[message.session] = None
            elif isinstance(message, Close):
                sessions.pop(message.session, None)
        return list(sessions)


class Scene:
    """A lead driven by hand, and drafters."""

    def __init__(self, *, overlaps: bool = False, clock: Callable[[], float] = time.monotonic) -> None:
        self.pool = MemoryPool()
        bus = self.pool.bus(LEAD)
        self.remote = RemoteDrafters(bus, LEAD, max_ahead=8, overlaps=overlaps, clock=clock)
        self.speculator = Speculator(Policy(overlaps=overlaps), remote=self.remote)
        bus.start(self.remote)

    def add(self, id: str = "drafter", **other: object) -> Heard:
        presence = replace(Presence(id, "drafter", "toy", "0", CARD, 8, kernel="elsewhere"), **other)
        heard = Heard(self.pool, presence)
        self.settle()
        return heard

    def settle(self) -> None:
        """Deliver messages until nobody sends any more."""
        working = True
        while working:
            working = self.pool.pump() > 0
            take_in(self.speculator)
            working = self.pool.pump() > 0 or working

    def open(self, session: int, tokens: Sequence[int] = PROMPT, salt: str = "") -> None:
        self.speculator.open(OpenedSession(session, list(tokens), SAMPLING, Speculation(salt=salt)))
        self.settle()

    def refusals(self) -> dict[str, str]:
        return {r.presence.id: r.refusal for r in self.remote.drafters() if r.refusal}


@pytest.mark.parametrize(
    "bad",
    [
        {"vocabulary": replace(CARD, blocks=())},
        {"vocabulary": replace(CARD, blocks=(1,) * 77)},
        {"wire": 2},
        {"wire": 5, "vocabulary": replace(CARD, blocks=())},
    ],
)
def test_other_version_is_refused_by_name(bad: dict[str, object]):
    scene = Scene()
    other, good = scene.add("other", **bad), scene.add("good")
    scene.open(1)
    [reason] = scene.refusals().values()
    assert list(scene.refusals()) == ["other"]
    assert "version" in reason
    assert other.messages == [Refuse("lead", reason)]
    assert len(good.opened()) == 1


def test_a_full_drafter_gets_no_more_sessions():
    scene = Scene()
    small, other = scene.add("small", capacity=1), scene.add("other")
    for session in (1, 2):
        scene.open(session)
    assert (len(small.opened()), len(other.opened())) == (1, 2)


def test_unopenable_session_leaves_nothing():
    scene = Scene()
    drafter = scene.add()
    with pytest.raises(struct.error):  # the memory's bus raises where a message cannot be encoded
        scene.open(1, (1, 2, 1 << 40))
    scene.speculator.close(1, keep=False)  # as the engine does
    assert is_idle(scene.speculator)
    scene.open(2)
    assert len(drafter.opened()) == 1
    scene.speculator.close(2, keep=False)
    scene.settle()
    assert drafter.opened() == []
    assert is_idle(scene.speculator)


def test_flood_hides_no_members():
    scene = Scene()
    leaving = scene.add("leaving")
    scene.open(1)
    scene.remote.peers([Presence("joining", "drafter", "toy", "0", CARD, 8)])
    for i in range(2 * MAX_UNREAD):
        scene.remote.received(Want("nobody", i, 0))
    take_in(scene.speculator)
    assert [record.presence.id for record in scene.remote.drafters()] == ["joining"]
    assert len(leaving.opened()) == 1


def test_drafter_messages_skip_engine_thread():
    scene = Scene()
    drafter = scene.add()
    scene.open(1)
    [opened] = drafter.messages
    assert isinstance(opened, Open)
    guess = Draft("drafter", opened.session, len(PROMPT), opened.chain, 1000, (-1,), (5,), b"\xff")
    scene.remote.received(guess)
    for _ in range(MAX_UNREAD):
        scene.remote.received(opened)
    take_in(scene.speculator)
    [record] = scene.remote.drafters()
    assert record.counts == {"fresh": 1}


def test_lead_answers_for_known_sessions():
    scene = Scene()
    drafter = scene.add()
    scene.open(1)
    [opened] = drafter.opened()
    for n_known, answer in ((len(PROMPT), "Commit"), (3, "Open"), (0, "Open")):
        drafter.bus.send("lead", Want("drafter", opened, n_known))
        scene.settle()
        assert type(drafter.messages[-1]).__name__ == answer
    drafter.bus.send("lead", Want("drafter", opened + 1, 5))
    scene.settle()
    assert drafter.messages[-1] == Close("lead", opened + 1, keep=True)


def test_excess_salt_forgets_oldest_texts():
    """A reply is looked up among those of its salt until 16 other salts came."""
    harness = Harness(FakeBackend(), Speculator(Policy(gate=False)))

    def n_steps(salt: str) -> int:
        ask = replace(request(max_tokens=40), speculation=Speculation(salt=salt), salt=salt)
        [outcome] = harness.run(ask)
        return outcome.finished.stats.n_steps

    plain = n_steps("first")
    for i in range(40):
        assert n_steps(f"salt {i}") == plain
        assert n_steps("first") < plain / 2
    assert n_steps("salt 39") < plain / 2
    assert n_steps("salt 2") == plain


def test_credit_counts_the_step_sessions(monkeypatch: pytest.MonkeyPatch):
    """Sessions that wait for a slot are not counted, those without drafts are."""
    told: list[int] = []
    learn = Ledger.learn

    def recorded(ledger: Ledger, step: Step) -> None:
        if step.timing:
            told.append(step.timing.n_sessions)
        learn(ledger, step)

    monkeypatch.setattr(Ledger, "learn", recorded)
    scene = Scene()
    scene.add(host="here", kernel="here")
    harness = Harness(FakeBackend(), scene.speculator, n_slots=2)
    asks = [request((*PROMPT, i), max_tokens=30, stop_tokens=frozenset()) for i in range(3)]
    asks.append(request((*PROMPT, 9), max_tokens=30, stop_tokens=frozenset(), draft_max=0))
    harness.run(*asks)
    assert max(told) == 2
    assert told.count(2) > told.count(1), "one may be alone at the end"


def test_wrong_session_loses_its_drafters():
    """Messages cost 0.4 ms of 4.5 here. The other session keeps its drafter."""
    scene = Scene()
    tokens = {1: list(PROMPT), 2: list(PROMPT)}
    step = StepTiming(1, 64, 0.004, 0.0041, 1, 1)
    heard_enough = int(IN_SESSION().patience // EVIDENCE_HEARD)
    for _ in range(KNOWN):
        take_in(scene.speculator)
        committed(scene.speculator, timing=step)  # without drafters
    drafter = scene.add()
    for id in tokens:
        scene.speculator.open(OpenedSession(id, tokens[id], SAMPLING, Speculation()))
    scene.settle()
    hard, easy = drafter.opened()

    def advance(id: int, wire_id: int, *, right: bool) -> None:
        base = len(tokens[id])
        if wire_id in drafter.opened():
            told = [m for m in drafter.messages if isinstance(m, Open | Commit) and m.session == wire_id]
            chain = told[-1].chain
            guess = (9,) if right else (8,)
            drafter.bus.send("lead", Draft("drafter", wire_id, base, chain, 100, (ROOT,), guess, b"\x80"))
            scene.settle()
        tokens[id].append(9)
        plan = ask(scene.speculator, Ask(id, 4))
        tally = {"drafter": (1, 1)} if right else {}
        committed(scene.speculator, id, tally=tally, timing=step._replace(step_s=0.0045), plan=plan)
        scene.settle()

    for _ in range(heard_enough):
        advance(1, hard, right=False)
        advance(2, easy, right=True)
    n_rested = 0
    while drafter.opened() == [easy]:
        advance(1, hard, right=False)
        n_rested += 1
    assert n_rested > heard_enough
    assert set(drafter.opened()) == {hard, easy}


def test_resting_is_logged_once_a_minute(caplog: pytest.LogCaptureFixture):
    caplog.set_level("INFO", "duo.drafters")
    clock = Clock()
    scene = Scene(clock=clock)
    scene.add(host="there")
    for _ in range(2 * 4):
        for why in ("it is too slow", ""):
            scene.remote.pause(scene.remote.hosts["there"], why)
        clock.now += TELL_S / 4
    scene.remote.pause(scene.remote.hosts["there"], WAITS)
    said = [record.message.removeprefix("drafter drafter ") for record in caplog.records]
    assert said[1:] == 2 * ["rests: it is too slow", "goes on"]


def test_drafter_may_tell_why_resting():
    scene = Scene()
    scene.add(host="there")
    [record] = scene.remote.drafters()
    for why in ("", "a moment", "it is too slow", ""):
        scene.remote.pause(scene.remote.hosts["there"], why)
        assert (record.rests, record.paused) == (why, bool(why))


def test_presence_tells_the_guess_time():
    scene = Scene()
    drafter = scene.add(td_us=2000)
    [record] = scene.remote.drafters()
    assert record.guess_s == pytest.approx(0.002)
    scene.open(1)
    [wire_id] = drafter.opened()
    [told] = [message for message in drafter.messages if isinstance(message, Open)]
    draft = Draft("drafter", wire_id, len(PROMPT), told.chain, 900, (ROOT,), (9,), b"\x80")
    drafter.bus.send("lead", draft)
    scene.settle()
    assert record.guess_s == pytest.approx(0.0009)


@pytest.mark.parametrize("overlaps", [False, True])
def test_gpu_commits_wait_for_decode(overlaps: bool):
    scene = Scene(overlaps=overlaps)
    drafter = scene.add()

    def kinds() -> list[str]:
        scene.settle()
        return [type(message).__name__ for message in drafter.messages]

    def commit() -> None:
        speculated.session.tokens.append(7)  # pyright: ignore
        committed(scene.speculator, 1, plan=DraftPlan())

    scene.open(1)
    [speculated] = scene.speculator._sessions.values()  # pyright: ignore[reportPrivateUsage]
    commit()
    assert kinds() == (["Open"] if overlaps else ["Open", "Commit"])
    scene.speculator.meanwhile(DraftPlan())
    assert kinds() == ["Open", "Commit"]
    commit()
    scene.speculator.meanwhile(DraftPlan(), decodes=False)
    assert kinds() == ["Open", "Commit", "Commit"], "with many sessions, before the decode"
    commit()
    scene.speculator.close(1, keep=True)
    assert kinds() == ["Open", "Commit", "Commit", "Commit", "Close"], "in order, although no decode follows"


def test_drafts_during_decode_are_taken():
    """The next step has them without more work."""
    scene = Scene(overlaps=True)
    drafter = scene.add()
    scene.open(1)
    [wire_id] = drafter.opened()
    [told] = [message for message in drafter.messages if isinstance(message, Open)]
    [speculated] = scene.speculator._sessions.values()  # pyright: ignore[reportPrivateUsage]
    drafter.bus.send("lead", Draft("drafter", wire_id, len(PROMPT), told.chain, 900, (ROOT,), (9,), b"\x80"))
    scene.pool.pump()
    assert not speculated.tree.n_below
    scene.speculator.meanwhile(DraftPlan())
    assert speculated.tree.n_below == 1


@pytest.mark.parametrize("overlaps", [False, True])
def test_sharing_drafters_hear_first_token(overlaps: bool):
    """Without a first token they hear nothing. Where a GPU evaluates the prompt, they hear at once."""
    scene = Scene(overlaps=overlaps)
    scene.speculator = Speculator(Policy(gate=False), remote=scene.remote)
    away, beside = scene.add("away"), scene.add("beside", kernel=LEAD.kernel)
    prompts = [[*PROMPT, i] for i in range(2)]
    for id, tokens in enumerate(prompts):
        scene.speculator.open(OpenedSession(id, tokens, SAMPLING, Speculation()))
    scene.settle()
    assert (len(away.opened()), len(beside.opened())) == (2, 2 if overlaps else 0)
    prompts[1].append(1)
    scene.speculator.close(0, keep=False)
    scene.settle()
    assert away.opened() == beside.opened()
    assert len(beside.opened()) == 1
    if not overlaps:
        assert [m.tokens for m in beside.messages if isinstance(m, Open)] == [tuple(prompts[1])]


def test_pause_ends_only_where_allowed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(planner, "_pauses", Mock(return_value=()))
    scene = Scene()
    drafter = scene.add(host="here")
    scene.open(1)
    [speculated] = scene.speculator._sessions.values()  # pyright: ignore[reportPrivateUsage]
    speculated.heard = True

    def step(cost: float = 0.0) -> None:
        speculated.session.tokens.append(7)  # pyright: ignore
        plan = ask(scene.speculator, Ask(1, 4))
        plan.charges = {1: cost} if cost else {}
        committed(scene.speculator, 1, plan=plan)

    while not speculated.account.paused:
        step(0.1)
    scene.settle()
    assert drafter.opened() == []
    for may_draft in (False, True):
        scene.remote.pause(scene.remote.hosts["here"], "" if may_draft else "of a test")
        for _ in range(100):  # more than the rest
            step()
        assert bool(speculated.account.paused) is not may_draft
    scene.settle()
    assert len(drafter.opened()) == 1
    assert not speculated.heard
