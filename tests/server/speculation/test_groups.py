"""Drafters that cost more than they bring rest soon, in short replies too."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from server.engine.proposer import StepTiming
from server.engine.scheduler import Limits
from server.estimators import Median
from server.llama.backend import Batch, Logits
from server.speculation.account import LOSS
from server.speculation.drafter_host import BASELINE_STEPS, CREDIT, Charge
from server.speculation.ledger import EVIDENCE_ALONE, EVIDENCE_HEARD
from server.speculation.policy import Policy
from server.speculation.rates import KNOWN
from server.speculation.sources.drafter_record import WAITS, DrafterRecord
from server.speculation.sources.remote import RemoteDrafters
from server.speculation.speculated import IN_SESSION
from server.speculation.speculator import Speculator
from server.speculation.step import LOOKUP
from server.speculation.step_times import StepTimes
from server.speculation.wire.bus import Listener
from server.speculation.wire.messages import Close, Commit, Draft, Message, Open
from server.speculation.wire.presence import Presence, vocabulary_card
from tests.fake_backend import FakeBackend, FakeModel, FakeVocabulary
from tests.memory_bus import MemoryBus, MemoryPool
from tests.server.speculation.ledger_scene import Taught
from tests.server.speculation.test_speculator import Clock
from tests.support import Harness, request

CARD = vocabulary_card(FakeVocabulary())
OWN = Presence("lead", "lead", "toy", "0", CARD, 1, host="here", kernel="here")
# steps of a session alone until its models may pause: with guesses, and with messages
TRIED, HEARD = (int(IN_SESSION().patience // each) for each in (EVIDENCE_ALONE, EVIDENCE_HEARD))
NONSENSE = ord("~")  # what the toy model never says


class Neighbour:
    """A drafter on a Bus that lies, or works and says nothing."""

    def __init__(self, *, lies: bool, in_time: bool, kernel: str = "here") -> None:
        """Make the drafter.

        in_time: its lies are there before the lead's step begins, else during it.
        """
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
    """A Listener that says nothing."""

    def received(self, message: Message) -> None: ...
    def peers(self, present: Sequence[Presence]) -> None: ...


def listening(pool: MemoryPool) -> RemoteDrafters:
    """Return a lead on this bus."""
    bus = pool.bus(OWN)
    remote = RemoteDrafters(bus, OWN, max_ahead=8)
    bus.start(remote)
    return remote


def join(pool: MemoryPool, id: str, host: str, kernel: str = "") -> MemoryBus:
    """Join a silent drafter, on a host that is its kernel's too, if that has no other name."""
    presence = Presence(id, "drafter", "toy", "0", CARD, 1, host=host, kernel=kernel or host)
    bus = pool.bus(presence)
    bus.start(Silent())
    pool.pump()
    return bus


class SlowedBackend(FakeBackend):
    """A backend whose decodes take a second, and a fifth more while the neighbour works."""

    def __init__(self, clock: Clock, neighbour: Neighbour) -> None:
        super().__init__(FakeModel(eog_rate=0.0))
        self.clock, self.neighbour = clock, neighbour
        self.n_beside = 0
        self.undrafted_s, self.wider = 1.0, 0.0  # of a row; by that, of each row more

    def decode(self, batch: Batch) -> Logits:
        self.n_beside += bool(self.neighbour.sessions)
        plain = 1.2 if self.neighbour.sessions else 1.0
        self.clock.now += self.undrafted_s * (plain + self.wider * (len(batch) - 1))
        if not self.neighbour.in_time:
            self.neighbour.guess()
        return super().decode(batch)


class Scene:
    def __init__(
        self, *, lies: bool, in_time: bool = False, kernel: str = "here", times: StepTimes | None = None
    ) -> None:
        clock, self.neighbour = Clock(), Neighbour(lies=lies, in_time=in_time, kernel=kernel)
        self.backend = SlowedBackend(clock, self.neighbour)
        remote = RemoteDrafters(self.neighbour, OWN, max_ahead=8, clock=clock)
        self.neighbour.start(remote)
        self.speculator = speculator = Speculator(
            Policy(lookup=False), remote=remote, times=times, clock=clock
        )
        limits = Limits(n_batch=64, n_chunk=64, draft_max=4)
        self.harness = Harness(self.backend, speculator, limits=limits, clock=clock)

    def beside(self, n_tokens: int, per_reply: int = 20) -> int:
        """Return how many decodes of replies of n_tokens took place beside a working neighbour."""
        before = self.backend.n_beside
        for i in range(n_tokens // per_reply):
            self.harness.run(request(seed=i, temperature=1.0, max_tokens=per_reply))
        return self.backend.n_beside - before


SLOWER = 0.2  # of a plain step, beside a neighbour at work


def test_undrafted_steps_are_measured_before_work():
    scene = Scene(lies=False)
    assert scene.beside(BASELINE_STEPS - 2, per_reply=BASELINE_STEPS - 2) == 0
    assert scene.beside(20) > 10


def test_useless_drafter_costs_one_percent():
    scene = Scene(lies=False)
    assert scene.beside(100, per_reply=10) <= CREDIT / SLOWER + 20, "with the prompts' decodes"
    n_more = scene.beside(5000, per_reply=500)
    assert 0 < SLOWER * n_more <= 5000 * LOSS + CREDIT


def test_short_replys_only_step_counts():
    scene = Scene(lies=False)
    assert 0 < scene.beside(300, per_reply=2) <= CREDIT / SLOWER + KNOWN


@pytest.mark.parametrize("in_time", [True, False])
def test_a_liar_costs_one_percent(in_time: bool):
    """This is beside its cost in each reply until its drafters rest there."""
    scene = Scene(lies=True, in_time=in_time)
    assert scene.beside(200) <= CREDIT / SLOWER + 20
    n_more = scene.beside(3000, per_reply=500)
    assert 0 < SLOWER * n_more <= 3000 * LOSS + CREDIT


@pytest.mark.parametrize("in_time", [True, False])
def test_remote_liar_rests_each_reply(in_time: bool, caplog: pytest.LogCaptureFixture):
    """The liar rests until its messages are known to cost nothing here.

    Few of its guesses are verified then, each time that it gets the session: at first and after each rest.
    """
    caplog.set_level("INFO", "duo.drafters")
    scene = Scene(lies=True, in_time=in_time, kernel="elsewhere")
    assert 0 < scene.beside(60, per_reply=60) <= HEARD + 1, "with the prompt's decode"
    for _ in range(5):
        scene.backend.widths.clear()
        before = scene.neighbour.n_opened
        scene.beside(60, per_reply=60)
        n_opened = scene.neighbour.n_opened - before
        assert sum(width > 1 for width in scene.backend.widths[1:]) <= n_opened * TRIED
    assert "rests" not in caplog.text, "nor altogether"


def test_resting_drafter_returns_within_reply():
    """Steps without guesses are skipped meanwhile."""
    scene = Scene(lies=True, in_time=True, kernel="elsewhere")
    scene.beside(60, per_reply=60)
    before = scene.neighbour.n_opened
    scene.beside(100, per_reply=100)
    assert scene.neighbour.n_opened - before > 1


def test_resting_is_told_with_reason(caplog: pytest.LogCaptureFixture):
    caplog.set_level("DEBUG", "duo.drafters")
    scene = Scene(lies=False)
    scene.beside(200, per_reply=200)
    said = [(record.levelname, record.message.removeprefix("drafter drafter ")) for record in caplog.records]
    looks = [("DEBUG", f"rests: {WAITS}"), ("DEBUG", "goes on")]
    assert said[1:] == [*looks, ("INFO", "rests: the lead is faster without it now")]


@pytest.mark.parametrize("meanwhile", [0, 20])
def test_returning_drafter_regains_credit(meanwhile: int):
    scene = Scene(lies=False)
    once = scene.beside(200)
    for _ in range(2):
        scene.neighbour.leave()
        scene.beside(meanwhile)
        scene.neighbour.join()
        assert scene.beside(200) == pytest.approx(once, abs=10)


def test_hopeless_sessions_are_not_announced():
    scene = Scene(lies=True, times=StepTimes(64, {n: 1.5 * n - 0.5 for n in range(1, 65)}))
    assert scene.beside(100) <= 2, "the prompt's decode and one more"


def test_idle_moment_pauses_nobody():
    taught = Taught(lookup=True, seconds=[1.0, 1.1, 1.2])
    taught.warm_up(BASELINE_STEPS)
    taught.serve(0)
    assert taught.serve().lookup


def test_restart_begins_with_findings():
    before, after = Scene(lies=False), Scene(lies=False)
    before.beside(200)
    after.speculator.ledger.recall(before.speculator.ledger.memory())
    assert after.beside(200) == 0


@pytest.mark.parametrize("memory", [None, [], {LOOKUP: 3}, {LOOKUP: {"1": (False, 3.0)}}])
def test_a_memory_of_something_else_is_ignored(memory: object):
    ledger = Taught(lookup=True).ledger
    ledger.recall(memory)
    assert ledger.memory() == {LOOKUP: {}}


def test_sharing_drafters_wait_once():
    pool = MemoryPool()
    remote = listening(pool)
    for id, host in ("a", "here"), ("b", "elsewhere"):
        join(pool, id, host)
    remote.drain()
    taught = Taught(remote, Median(1))
    taught.serve()
    assert {d.presence.id: d.paused for d in remote.drafters()} == {"a": True, "b": False}
    taught.warm_up(BASELINE_STEPS)
    taught.serve()
    assert not any(d.paused for d in remote.drafters())
    join(pool, "c", "here")
    remote.drain()
    taught.serve()
    assert not any(d.paused for d in remote.drafters()), "one more is no reason to pause"


@pytest.mark.parametrize(("host", "kernel"), [("elsewhere", "elsewhere"), ("container", "here")])
def test_drafters_on_another_machine_have_no_account(host: str, kernel: str):
    """They do not pause after a hard text either."""
    pool = MemoryPool()
    remote = listening(pool)
    join(pool, "a", host, kernel)
    remote.drain()
    [record] = remote.drafters()
    record.n_assigned, record.counts["accepted"] = 1, 1
    taught, n_rested = Taught(remote), 0
    for _ in range(100):
        taught.serve()
        n_rested += record.paused
        taught.learn(Charge(crowded=0.2), timing=StepTiming(5, 9, 1.2, 1.2, 1, 1))
    assert (n_rested == 0) == (kernel != "here")


def test_drafters_pause_where_no_guess_can_pay(caplog: pytest.LogCaptureFixture):
    """For two sessions each row takes as long as a step; for one it does not."""
    caplog.set_level("INFO", "duo.drafters")
    pool = MemoryPool()
    remote = listening(pool)
    join(pool, "a", "elsewhere")
    remote.drain()
    [record] = remote.drafters()
    record.n_assigned, record.counts["accepted"] = 1, 1
    taught = Taught(remote, seconds=[1.0, 1.1, 2.4, 3.6, 4.8])
    taught.serve(1)
    assert not record.paused
    taught.learn()
    taught.serve(2)
    assert record.paused
    assert "rests: no guess can pay" in caplog.text
    taught.serve(1)
    assert not record.paused


def with_a_drafter(pool: MemoryPool | None = None) -> tuple[RemoteDrafters, DrafterRecord]:
    """Return a silent drafter on the lead's cores, assigned to a session unless it rests."""
    pool = pool or MemoryPool()
    remote = listening(pool)
    join(pool, "a", "here")
    remote.drain()
    [record] = remote.drafters()
    record.n_assigned, pause = 1, remote.pause

    def pause_or_work(records: Sequence[DrafterRecord], reason: str) -> None:
        pause(records, reason)
        for one in records:
            one.n_assigned = int(not reason)

    remote.pause = pause_or_work
    return remote, record


@pytest.mark.parametrize(("saved", "rests"), [(0.0, True), (0.1, True), (0.3, False)])
def test_sharing_drafters_must_save_time(saved: float, rests: bool):
    """Right guesses do not count, since the draft model would have had them. Each step has a right one."""
    remote, record = with_a_drafter()
    taught = Taught(remote, Median(1))
    n_on, charge = 0, Charge(crowded=0.2, saved=saved, most_saved=1.0)
    for _ in range(BASELINE_STEPS + 200):
        taught.serve()
        works = not record.paused
        n_on += works
        tally = {"a": (1, 1), "draft": (3, 3)} if works else {}
        taught.learn(charge, tally, guess_cost=0.1, timing=StepTiming(5, 9, 1.2, 1.2, 2, 1))
    assert record.paused is rests
    assert n_on >= CREDIT / (0.2 - saved) if rests else n_on == 200


def test_drafter_saves_what_lead_spends():
    remote, record = with_a_drafter()
    taught = Taught(remote, Median(1))
    for _ in range(BASELINE_STEPS + 200):
        taught.serve()
        charge = Charge(crowded=0.2, saved=0.3, most_saved=0.1)
        taught.learn(charge, {"a": (12, 4)}, guess_cost=0.1, timing=StepTiming(13, 9, 1.2, 1.2, 5, 1))
    assert record.paused
