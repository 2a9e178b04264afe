"""A session in a drafter is a lease: whatever message was lost, both sides agree after a while."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from drafters.worker import LEASE_S, UNANSWERED, Worker
from server.drafting.model_drafter import ModelDrafter
from server.engine.proposer import OpenedSession
from server.engine.request import Speculation
from server.sampling.params import SamplingParams
from server.speculation.policy import Policy
from server.speculation.sources.remote import RemoteDrafters
from server.speculation.speculator import Speculator
from server.speculation.wire.messages import Close, Commit, Message, Open, decode
from tests.drafters.scene import ENDLESS, LEAD, OWN, PROMPT
from tests.fake_backend import FakeBackend
from tests.memory_bus import MemoryPool
from tests.server.speculation.driving import take_in


class Pair:
    """A lead without an engine, and a drafter, on one clock that stands still."""

    def __init__(self) -> None:
        self.now = 0.0
        self.pool = MemoryPool()
        self.sent: list[Message] = []
        self.is_lost: Callable[[Message], bool] = lambda message: False
        self.pool.tamper = self._send
        bus = self.pool.bus(LEAD)
        remote = RemoteDrafters(bus, LEAD, max_ahead=8, clock=lambda: self.now)
        self.lead = Speculator(Policy(gate=False), remote=remote)
        bus.start(remote)
        self.backend = FakeBackend(ENDLESS)
        drafter_bus = self.pool.bus(OWN)
        self.worker = Worker(drafter_bus, OWN, ModelDrafter(self.backend), clock=lambda: self.now)
        drafter_bus.start(self.worker)
        self.settle()

    def _send(self, to: str, data: bytes) -> list[bytes]:
        message = decode(data)
        if to == OWN.id:
            self.sent.append(message)
        return [] if self.is_lost(message) else [data]

    def open(self) -> None:
        tokens = list(PROMPT)
        self.lead.open(OpenedSession(1, tokens, SamplingParams(), Speculation()))
        tokens.append(1)  # the drafter, which has the lead's cores, is told with the first one
        self.settle()

    def settle(self) -> None:
        for _ in range(30):
            self.pool.pump()
            take_in(self.lead)
            self.worker.turn(wait=False)

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.settle()


@pytest.fixture
def pair() -> Pair:
    pair = Pair()
    pair.open()
    assert pair.worker.n_sessions == 1
    return pair


def lose_closes(pair: Pair) -> None:
    pair.is_lost = lambda message: isinstance(message, Close)


def vanish(pair: Pair) -> None:
    """Have the lead forget a drafter after two silent seconds, without telling it."""
    pair.pool.vanish(OWN.id)
    pair.settle()


def come_back(pair: Pair) -> None:
    pair.is_lost = lambda message: False
    pair.pool.appear(OWN.id)
    pair.settle()


@pytest.mark.parametrize("fault", [lose_closes, vanish])
def test_lost_close_ends_with_lease(pair: Pair, fault: Callable[[Pair], None]):
    fault(pair)
    pair.lead.close(1, keep=True)
    pair.settle()
    come_back(pair)
    assert pair.worker.n_sessions == 1
    pair.sleep(LEASE_S + 0.1)
    assert pair.worker.n_sessions == 0


def test_leaked_session_frees_its_place(pair: Pair):
    vanish(pair)
    pair.lead.close(1, keep=True)
    come_back(pair)
    pair.sleep(LEASE_S + 0.1)
    n_steps = len(pair.backend.widths)
    pair.open()
    assert pair.backend.widths[n_steps] < len(PROMPT) / 2, "its cells are reused"


def test_long_waiting_session_is_asked_for(pair: Pair):
    for _ in range(20):
        pair.sleep(LEASE_S + 0.1)
    assert pair.worker.n_sessions == 1
    assert len([m for m in pair.sent if isinstance(m, Open)]) == 1
    renewals = [m for m in pair.sent if isinstance(m, Commit)]
    assert {m.tokens for m in renewals} == {()}
    assert 10 <= len(renewals) <= 20


def test_unanswered_session_ends(pair: Pair):
    """Its lead may have died before it was seen."""
    pair.is_lost = lambda message: not isinstance(message, Open)
    for _ in range(UNANSWERED):
        pair.sleep(LEASE_S + 0.1)
    assert pair.worker.n_sessions == 0
