"""Drafters that cost more than they bring rest soon, in short replies too."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import cast

import pytest

from server.engine.proposer import NOTHING, Planned, Proposal, TimedStep
from server.engine.scheduler import Limits
from server.estimators import Median
from server.llama.backend import Batch, Logits
from server.speculation.gating import balance
from server.speculation.gating.costs import StepCosts
from server.speculation.gating.payoff import FEWEST, FIRST, HOLD, LENGTH, SETTLED, UNHEARD
from server.speculation.groups import LOOKUP, RENEWED, TRIED, Groups
from server.speculation.policy import Policy
from server.speculation.sources.remote import DrafterRecord, RemoteDrafters
from server.speculation.sources.synchronous import InlineModel
from server.speculation.speculator import Speculator
from server.speculation.wire.bus import Listener
from server.speculation.wire.messages import Close, Commit, Draft, Message, Open
from server.speculation.wire.presence import Presence, vocabulary_card
from tests.fake_backend import FakeBackend, FakeModel, FakeVocabulary
from tests.memory_bus import MemoryPool
from tests.server.speculation.test_speculator import Clock
from tests.support import Harness, request

CARD = vocabulary_card(FakeVocabulary())
OWN = Presence("lead", "lead", "toy", "0", CARD, 1, host="here", kernel="here")
NONSENSE = ord("~")  # what the toy model never says


class Neighbour:
    """A drafter on a bus; implements Bus. Lies, or works and says nothing."""

    def __init__(self, *, lies: bool, in_time: bool, kernel: str = "here") -> None:
        """in_time: its lies are there before the lead's step begins, else while it takes place."""
        self.lies, self.in_time = lies, in_time
        self.n_opened = 0
        self.sessions: dict[int, tuple[int, int]] = {}  # base, chain
        self._presence = Presence("drafter", "drafter", "toy", "0", CARD, 1, kernel=kernel)
        self._listener: Listener | None = None
        self._here = False

    def start(self, listener: Listener) -> None:
        self._listener = listener
        self.join()

    def join(self) -> None:
        assert self._listener
        self._here = True
        self._listener.peers([self._presence])

    def leave(self) -> None:
        assert self._listener
        self._here = False
        self.sessions.clear()
        self._listener.peers([])

    def send(self, to: str, message: Message) -> None:
        if not self._here:
            return
        match message:
            case Open():
                self.n_opened += 1
                self.sessions[message.session] = len(message.tokens), message.chain
            case Commit():
                end = message.base + len(message.tokens)
                self.sessions[message.session] = end, message.chain
            case Close():
                self.sessions.pop(message.session, None)
            case _:
                pass
        if self.in_time:
            self.guess()

    def guess(self) -> None:
        assert self._listener
        for session, (base, chain) in self.sessions.items() if self.lies else ():
            draft = Draft("drafter", session, base, chain, 1000, (-1,), (NONSENSE,), b"\xff")
            self._listener.received(draft)

    def describe(self, presence: Presence) -> None:
        pass

    def close(self) -> None:
        pass


class Silent:
    """A drafter that says nothing. Implements Listener."""

    def received(self, message: Message) -> None: ...
    def peers(self, present: Sequence[Presence]) -> None: ...


class SlowedBackend(FakeBackend):
    """Every decode takes a second, and a fifth more while the neighbour has something to do."""

    def __init__(self, clock: Clock, neighbour: Neighbour) -> None:
        super().__init__(FakeModel(eog_rate=0.0))
        self.clock, self.neighbour = clock, neighbour
        self.n_beside = 0

    def decode(self, batch: Batch) -> Logits:
        self.n_beside += bool(self.neighbour.sessions)
        self.clock.now += 1.2 if self.neighbour.sessions else 1.0
        if not self.neighbour.in_time:
            self.neighbour.guess()
        return super().decode(batch)


class Scene:
    def __init__(self, *, lies: bool, in_time: bool = False, kernel: str = "here") -> None:
        clock, self.neighbour = Clock(), Neighbour(lies=lies, in_time=in_time, kernel=kernel)
        self.backend = SlowedBackend(clock, self.neighbour)
        remote = RemoteDrafters(self.neighbour, OWN, max_ahead=8, clock=clock)
        self.neighbour.start(remote)
        self.speculator = speculator = Speculator(Policy(lookup=False), remote=remote, clock=clock)
        limits = Limits(n_batch=64, n_chunk=64, draft_max=4)
        self.harness = Harness(self.backend, speculator, limits=limits, clock=clock)

    def beside(self, n_tokens: int, per_reply: int = 20) -> int:
        """How many decodes of so many tokens' replies took place beside a neighbour at work."""
        before = self.backend.n_beside
        for i in range(n_tokens // per_reply):
            self.harness.run(request(seed=i, temperature=1.0, max_tokens=per_reply))
        return self.backend.n_beside - before


PAST = FIRST + SETTLED + LENGTH[False]  # decodes until the first verdict


@pytest.mark.parametrize("in_time", [True, False])
def test_a_liar_rests_after_one_trial(in_time: bool):
    scene = Scene(lies=True, in_time=in_time)
    assert scene.beside(PAST) <= FIRST + 2
    assert scene.beside(HOLD[False], per_reply=HOLD[False]) <= SETTLED
    most = SETTLED + LENGTH[True] + 5  # with the prompts' decodes
    assert 0 < scene.beside(500) <= most, "when it is tried again"


@pytest.mark.parametrize("in_time", [True, False])
def test_a_liar_on_another_machine_rests_without_a_trial(in_time: bool, caplog: pytest.LogCaptureFixture):
    """Until it is known that its messages take nothing here. Few of its guesses are verified then, each time
    that it gets the session: at first and after each rest."""
    caplog.set_level("INFO", "duo.drafters")
    scene = Scene(lies=True, in_time=in_time, kernel="elsewhere")
    assert 0 < scene.beside(60, per_reply=60) <= balance.HEARD + 1, "with the prompt's decode"
    for _ in range(5):
        scene.backend.widths.clear()
        before = scene.neighbour.n_opened
        scene.beside(60, per_reply=60)
        n_opened = scene.neighbour.n_opened - before
        assert sum(width > 1 for width in scene.backend.widths[1:]) <= n_opened * balance.TRIED
    assert "rests" not in caplog.text, "there was no trial"


def test_one_that_rests_in_the_only_conversation_goes_on_within_the_reply():
    """Although such steps are passed over."""
    scene = Scene(lies=True, in_time=True, kernel="elsewhere")
    scene.beside(60, per_reply=60)
    before = scene.neighbour.n_opened
    scene.beside(100, per_reply=100)
    assert scene.neighbour.n_opened - before > 1


def test_it_is_told_why_one_rests(caplog: pytest.LogCaptureFixture):
    caplog.set_level("INFO", "duo.drafters")
    scene = Scene(lies=True)
    scene.beside(PAST, per_reply=PAST)
    scene.beside(500, per_reply=500)
    said = [record.message.removeprefix("drafter drafter ") for record in caplog.records]
    first, again, verdict = said[1:4]
    assert first == f"rests: {TRIED}"
    assert again == "goes on", "tried with it again"
    assert verdict == "rests: the lead is faster without it now"


def test_one_whose_guesses_were_right_begins_the_next_reply_again():
    scene = Scene(lies=True)
    scene.beside(PAST)
    assert scene.beside(20) == 0
    [record] = scene.speculator.drafters()
    record.counts["accepted"] += 1  # as if one of them had come true
    assert scene.beside(20) == SETTLED + FEWEST[True], "until it is clear that this text is no better"


def test_who_works_in_vain_rests_though_every_reply_is_shorter_than_a_trial():
    scene = Scene(lies=False)
    assert scene.beside(PAST, per_reply=10) <= 10 / 9 * FIRST + 2  # with the prompt's decode
    assert scene.beside(1000, per_reply=10) <= 10 / 9 * (UNHEARD + LENGTH[True] + SETTLED)


@pytest.mark.parametrize("meanwhile", [0, 20])
def test_one_that_leaves_and_comes_back_is_tried_anew(meanwhile: int):
    scene = Scene(lies=True)
    scene.beside(2 * PAST)
    for _ in range(2):
        scene.neighbour.leave()
        scene.beside(meanwhile)
        scene.neighbour.join()
        assert FIRST - 2 <= scene.beside(2 * PAST) <= FIRST + FEWEST[True]


@pytest.mark.parametrize("n_before", [FIRST + 4, FIRST + SETTLED + 4])
def test_one_that_leaves_while_it_is_tried_leaves_nothing_of_the_trial(n_before: int):
    scene = Scene(lies=False)
    scene.beside(n_before, per_reply=n_before)
    scene.neighbour.leave()
    assert scene.beside(20) == 0
    scene.neighbour.join()
    assert scene.beside(FIRST, per_reply=FIRST) == FIRST


def test_where_no_guess_can_pay_sessions_are_not_announced():
    scene = Scene(lies=True)
    scene.speculator.pricing.costs = StepCosts(64, {n: 1.5 * n - 0.5 for n in range(1, 65)})
    assert scene.beside(100) <= 2, "the prompt's decode and one more"


def test_a_draft_model_in_the_lead_rests_only_where_nothing_can_pay():
    groups = Groups(None, model=True)
    dear, cheap = [0.0, 1.0, 2.0, 3.0], [0.0, 1.0, 1.1, 1.2]
    step = TimedStep(n_rows=1, n_cells=9, decode_s=1.0, step_s=9.0, n_tokens=1, n_sessions=1)
    for curve in (cheap, dear, cheap):
        for _ in range(2 * RENEWED):
            groups.serve(1, lambda curve=curve: curve)
            groups.stepped(step)
        assert groups.model_guesses == (curve is cheap)
        assert groups.all_rest == (curve is dear)
    assert groups.memory() == {}


def test_a_moment_without_sessions_is_no_reason_to_rest():
    scene = Scene(lies=True)
    groups = Groups(None, lookup=True)
    groups.serve(0, lambda: [0.0, 1.0, 1.1, 1.2])
    assert groups.lookup_guesses
    scene.speculator.drain(0)
    assert scene.beside(12, per_reply=12) > 8


def test_after_a_restart_it_begins_with_what_was_found_out():
    before, after = Scene(lies=True), Scene(lies=True)
    before.beside(4 * PAST)
    assert before.speculator.groups
    assert after.speculator.groups
    after.speculator.groups.recall(before.speculator.groups.memory())
    assert after.beside(HOLD[False] // 2) <= 2, "the prompts' decodes"


@pytest.mark.parametrize("memory", [None, [], {LOOKUP: 3}, {LOOKUP: {"1": "off"}}])
def test_a_memory_of_something_else_is_ignored(memory: object):
    groups = Groups(None, lookup=True)
    groups.recall(memory)
    assert groups.memory() == {LOOKUP: {}}


def test_beside_a_draft_model_in_the_lead_those_on_its_cores_rest_until_they_were_tried():
    pool = MemoryPool()
    bus = pool.bus(OWN)
    remote = RemoteDrafters(bus, OWN, max_ahead=8)
    bus.start(remote)
    for id, host in ("a", "here"), ("b", "elsewhere"):
        pool.bus(Presence(id, "drafter", "toy", "0", CARD, 1, host=host, kernel=host)).start(Silent())
    pool.pump()
    remote.drain()
    groups = Groups(remote, model=True)
    groups.serve(1, list)
    assert {d.presence.id: d.resting for d in remote.drafters()} == {"a": True, "b": False}
    groups = Groups(remote, model=True)
    groups.recall({"here: toy": {"1": (True, 0.0)}})
    groups.serve(1, list)
    assert not any(d.resting for d in remote.drafters()), "a has shown that it pays"
    pool.bus(Presence("c", "drafter", "another", "0", CARD, 1, host="here", kernel="here")).start(Silent())
    pool.pump()
    remote.drain()
    groups.serve(1, list)
    assert not any(d.resting for d in remote.drafters()), "one more is no reason to rest"


@pytest.mark.parametrize(("host", "kernel"), [("elsewhere", "elsewhere"), ("container", "here")])
def test_drafters_on_another_machine_are_not_tried(host: str, kernel: str, caplog: pytest.LogCaptureFixture):
    """Nor do they rest after a hard text, unless no guess can pay for this number of sessions."""
    caplog.set_level("INFO", "duo.drafters")
    pool = MemoryPool()
    bus = pool.bus(OWN)
    remote = RemoteDrafters(bus, OWN, max_ahead=8)
    bus.start(remote)
    pool.bus(Presence("a", "drafter", "toy", "0", CARD, 1, host=host, kernel=kernel)).start(Silent())
    pool.pump()
    remote.drain()
    [record] = remote.drafters()
    record.n_assigned = 1
    groups, n_rested = Groups(remote), 0
    for _ in range(2 * (FIRST + LENGTH[True] + SETTLED)):
        groups.serve(1, list)
        n_rested += record.resting
        record.n_heard += not record.resting
        step_s = 1.0 if record.resting else 1.2
        groups.stepped(TimedStep(5, 9, step_s, step_s, 1, 1))
    assert (n_rested == 0) == (kernel != "here")
    for _ in range(RENEWED):
        groups.serve(2, lambda: [0.0, 1.0, 2.0, 3.0, 4.0, 5.0])
    assert record.resting
    assert kernel == "here" or "rests: no guess can pay" in caplog.text


def with_a_drafter() -> tuple[RemoteDrafters, DrafterRecord]:
    """On the lead's cores, and assigned to a session. It says nothing."""
    pool = MemoryPool()
    bus = pool.bus(OWN)
    remote = RemoteDrafters(bus, OWN, max_ahead=8)
    bus.start(remote)
    pool.bus(Presence("a", "drafter", "toy", "0", CARD, 1, host="here", kernel="here")).start(Silent())
    pool.pump()
    remote.drain()
    [record] = remote.drafters()
    record.n_assigned = 1
    return remote, record


@pytest.mark.parametrize(("slower", "rests"), [(1.15, True), (1.5, True), (0.8, False)])
def test_beside_a_draft_model_in_the_lead_those_on_its_cores_are_judged_by_work_not_by_texts(
    slower: float, rests: bool
):
    """Texts are easy to guess where it is slower with them, hard where it is quicker; no guess comes."""
    remote, record = with_a_drafter()
    groups = Groups(remote, model=True)
    n_rested = n_on = 0
    for _ in range(FIRST + LENGTH[True] + SETTLED + 100):
        groups.serve(1, list)
        n_rested += record.resting
        n_on += not record.resting
        time_s = 1.0 if record.resting else slower
        n_tokens = 10 if time_s > 1.0 else 1 if time_s < 1.0 else 5
        groups.stepped(TimedStep(5, 9, time_s, time_s, n_tokens, 1), work_s=1.0)
    assert n_rested >= FIRST - SETTLED
    assert record.resting is rests
    assert not rests or n_on <= SETTLED + FEWEST[True] + 1, "one that slows down is not tried for long"


def test_work_is_reckoned_by_steps_without_company_not_by_the_start_nor_by_guesses_beside_a_drafter():
    """The start took steps of four rows for slower than they are. On trial is a drafter, beside which such
    steps take a sixth longer, and guesses four times as long; before it most steps are of one row."""
    remote, record = with_a_drafter()
    td = Median(1)
    inline = cast(InlineModel, SimpleNamespace(td=td, source="draft"))
    costs = StepCosts(8, {1: 1.0, 4: 3.0})
    speculator = Speculator(Policy(lookup=False), remote=remote, inline=inline, costs=costs)
    guesses, n_on = Proposal((1, 2, 3), (-1, 0, 1), ("draft",) * 3), 0
    for i in range(FIRST + LENGTH[True] + SETTLED + 100):
        speculator.drain(1)
        n_on += not record.resting
        slower, is_wide = 1.0 if record.resting else 1.15, not record.resting or i % 8 == 7
        td.observe(0.1 if record.resting else 0.4)
        spent_s, decode_s = 3 * td.value * is_wide, slower * (2.0 if is_wide else 1.0)
        planned = Planned([guesses if is_wide else NOTHING], 0, spent_s)
        step_s = spent_s + decode_s
        speculator.stepped(planned, TimedStep(4 if is_wide else 1, 9, decode_s, step_s, 3, 1))
    assert record.resting
    assert 0 < n_on <= SETTLED + FEWEST[True] + 1


def test_a_guess_has_a_time_where_a_drafter_drafts_on_these_cores_from_the_start():
    """As before a restart. Its guesses are work that the draft model in the lead would have had."""
    remote, _ = with_a_drafter()
    inline = cast(InlineModel, SimpleNamespace(td=Median(1), source="draft"))
    inline.td.observe(0.5)
    costs = StepCosts(8, {1: 1.0, 4: 2.0})
    speculator = Speculator(Policy(lookup=False), remote=remote, inline=inline, costs=costs)
    groups = speculator.groups
    assert groups is not None
    groups.recall({"here: toy": {"1": (True, 0.0)}})
    seen = list[float]()
    groups.stepped = lambda step, work_s=0.0: seen.append(work_s)
    speculator.drain(1)
    assert not groups.calm
    guesses = Proposal((1, 2, 3), (-1, 0, 1), ("a",) * 3)
    speculator.stepped(Planned([guesses]), TimedStep(4, 9, 2.0, 2.0, 3, 1))
    assert seen == [pytest.approx(costs.curve(9)[4] + 3 * 0.5, rel=0.1)]
