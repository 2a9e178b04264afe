"""The in-process bus, and the faults it can make."""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence
from dataclasses import replace

import pytest

from server.speculation.wire.messages import Close, Message, Want, encode
from server.speculation.wire.presence import Presence, Role, VocabularyCard
from tests.memory_bus import MemoryBus, MemoryPool


def presence(id: str, role: Role) -> Presence:
    return Presence(id, role, "toy", "0", VocabularyCard(16, 1, 2, (5,)), capacity=1)


class Recorder:
    """A listener that records what it hears."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.peers_seen: list[list[str]] = []
        self.heard = threading.Event()

    def received(self, message: Message) -> None:
        self.messages.append(message)
        self.heard.set()

    def peers(self, present: Sequence[Presence]) -> None:
        self.peers_seen.append([peer.id for peer in present])


class Pair:
    """A lead and a drafter that know each other."""

    def __init__(self) -> None:
        self.pool = MemoryPool()
        self.lead, self.drafter = Recorder(), Recorder()
        self.lead_bus: MemoryBus = self.pool.bus(presence("L", "lead"))
        self.drafter_bus: MemoryBus = self.pool.bus(presence("D", "drafter"))
        self.lead_bus.start(self.lead)
        self.drafter_bus.start(self.drafter)
        self.settle()

    def settle(self) -> None:
        while self.pool.pump():
            pass


@pytest.fixture
def pair() -> Pair:
    return Pair()


def test_two_members_meet_and_talk(pair: Pair) -> None:
    assert (pair.lead.peers_seen, pair.drafter.peers_seen) == ([["D"]], [["L"]])
    pair.lead_bus.send("D", Close("L", 1, True))
    pair.drafter_bus.send("L", Want("D", 1, 2))
    assert pair.drafter.messages == []  # nothing moves by itself
    assert pair.pool.pump() == 2
    assert pair.drafter.messages == [Close("L", 1, True)]
    assert pair.lead.messages == [Want("D", 1, 2)]
    assert pair.lead_bus.counts["sent"] == pair.lead_bus.counts["received"] == 1


def test_a_pump_does_not_deliver_answers(pair: Pair) -> None:
    class Echo(Recorder):
        def received(self, message: Message) -> None:
            super().received(message)
            pair.drafter_bus.send("L", Want("D", 1, len(self.messages)))

    pair.drafter_bus.start(Echo())
    pair.lead_bus.send("D", Close("L", 1, True))
    assert pair.pool.pump() == 1
    assert pair.lead.messages == []
    assert pair.pool.pump() == 1
    assert pair.lead.messages == [Want("D", 1, 1)]


def test_sending_to_strangers_is_counted(pair: Pair) -> None:
    pair.lead_bus.send("nobody", Close("L", 1, False))
    pair.lead_bus.send("L", Close("L", 1, False))  # a lead writes to drafters only
    assert pair.lead_bus.counts["dropped"] == 2
    assert pair.pool.pump() == 0


def test_leaving(pair: Pair) -> None:
    pair.lead_bus.send("D", Close("L", 1, False))
    pair.drafter_bus.close()
    pair.settle()
    assert pair.lead.peers_seen == [["D"], []]
    assert pair.drafter.messages == []
    pair.drafter_bus.send("L", Want("D", 1, 1))
    assert pair.drafter_bus.counts["dropped"] == 1


def test_describing_oneself_anew_tells_the_others(pair: Pair) -> None:
    pair.drafter_bus.describe(replace(presence("D", "drafter"), td_us=700))
    pair.settle()
    assert pair.lead.peers_seen == [["D"], ["D"]]
    assert pair.drafter.peers_seen == [["L"]]


def test_outage_loses_messages(pair: Pair) -> None:
    pair.lead_bus.send("D", Close("L", 1, False))
    pair.pool.disconnect()
    pair.lead_bus.send("D", Close("L", 2, False))
    pair.pool.connect()
    pair.settle()
    assert pair.drafter.messages == []
    assert pair.lead.peers_seen == [["D"], [], ["D"]]
    assert pair.drafter.peers_seen == [["L"], [], ["L"]]
    assert pair.lead_bus.counts["dropped"] == 1


def test_silent_process_returns(pair: Pair) -> None:
    pair.pool.vanish("D")
    pair.settle()
    pair.lead_bus.send("D", Close("L", 1, False))
    pair.pool.appear("D")
    pair.settle()
    assert pair.lead.peers_seen == [["D"], [], ["D"]]
    assert pair.drafter.messages == []


def test_duplicates_losses_and_changes(pair: Pair) -> None:
    pair.pool.tamper = lambda to, data: (data, data)
    pair.lead_bus.send("D", Close("L", 1, False))
    pair.pool.tamper = lambda to, data: ()
    pair.lead_bus.send("D", Close("L", 2, False))
    pair.pool.tamper = lambda to, data: (data[:-1],)
    pair.lead_bus.send("D", Close("L", 3, False))
    pair.settle()
    assert pair.drafter.messages == [Close("L", 1, False)] * 2
    assert pair.drafter_bus.counts["undecodable"] == 1


def test_delay_and_disorder(pair: Pair) -> None:
    sent = [Close("L", i, False) for i in range(20)]
    pair.pool.hold("D")
    for message in sent:
        pair.lead_bus.send("D", message)
    pair.drafter_bus.send("L", Want("D", 1, 1))
    pair.settle()
    assert pair.drafter.messages == []
    assert pair.lead.messages == [Want("D", 1, 1)]  # only the one is held
    pair.pool.release("D", shuffle=random.Random(1))
    pair.settle()
    assert pair.drafter.messages != sent
    assert sorted(pair.drafter.messages, key=encode) == sorted(sent, key=encode)


def test_raw_bytes(pair: Pair) -> None:
    pair.pool.inject("D", b"\x01\x09")
    pair.pool.inject("D", encode(Close("L", 1, False)))
    pair.settle()
    assert pair.drafter.messages == [Close("L", 1, False)]
    assert pair.drafter_bus.counts["undecodable"] == 1


def test_in_the_background(pair: Pair) -> None:
    with pair.pool.running():
        pair.lead_bus.send("D", Close("L", 1, False))
        assert pair.drafter.heard.wait(10)
    pair.lead_bus.send("D", Close("L", 2, False))
    assert pair.drafter.messages == [Close("L", 1, False)]  # the background ended with the block
    assert pair.pool.pump() == 1
