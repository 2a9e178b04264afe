"""Leads' and drafters' sides of the real bus, many in one process, that say over a real server what is on a
tape; and connections that fill a server with what a bus sends. What that takes the server tells by INFO."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from itertools import count, cycle, islice
from statistics import mean
from typing import Any

import redis

from benchmarks.capacity import Usage, usage
from benchmarks.clocked import MOST_AT_ONCE
from benchmarks.tapes import Tape, between
from server.errors import StartupError
from server.speculation.wire.messages import Message
from server.speculation.wire.presence import BLOCK, Presence, Role, VocabularyCard, unique_id
from server.speculation.wire.redis_client import connect
from server.speculation.wire.streams import READ_COUNT, RedisBus

POOL = "carry"
JOIN_S = 20.0
SETTLE_S = 5.0  # without an arrival: what has not arrived is lost
LATE = 0.9  # of what is due was said: less, and the senders are what is measured
FULL = 0.95  # of a core: the server can do no more
INBOXES = 40  # of a press: enough that the server always has some to look after


class Ear:
    """Implements Listener."""

    peers_seen: frozenset[str] = frozenset()

    def received(self, message: Message) -> None: ...

    def peers(self, present: Sequence[Presence]) -> None:
        self.peers_seen = frozenset(one.id for one in present)


@dataclass(frozen=True, slots=True)
class Counts:
    """Messages of all buses. dropped: by those that should have sent them."""

    sent: int = 0
    received: int = 0
    dropped: int = 0

    def since(self, before: Counts) -> Counts:
        return Counts(self.sent - before.sent, self.received - before.received, self.dropped - before.dropped)


class Crowd(ExitStack):
    """Leads and drafters of one pool, all of whom see each other, until close()."""

    def __init__(self, url: str, n_leads: int, n_drafters: int, n_vocab: int) -> None:
        """Raises StartupError."""
        super().__init__()
        card = VocabularyCard(n_vocab, 1, 2, tuple(islice(count(1 << 31), -(-n_vocab // BLOCK))))
        self.buses: dict[str, RedisBus] = {}
        ears = dict[str, Ear]()
        with ExitStack() as stack:
            for i in range(n_leads + n_drafters):
                role: Role = "lead" if i < n_leads else "drafter"
                own = Presence(unique_id(role), role, role, "0", card, MOST_AT_ONCE)
                self.buses[own.id] = stack.enter_context(closing(RedisBus(url, POOL, own)))
                ears[own.id] = Ear()
                self.buses[own.id].start(ears[own.id])
            self.leads, self.drafters = list(self.buses)[:n_leads], list(self.buses)[n_leads:]
            _wait(lambda: all(ears[id].peers_seen == frozenset(self.drafters) for id in self.leads))
            _wait(lambda: all(ears[id].peers_seen == frozenset(self.leads) for id in self.drafters))
            self.enter_context(stack.pop_all())

    def counts(self) -> Counts:
        """So far."""
        all_ = [bus.counters for bus in self.buses.values()]
        return Counts(
            sum(one.sent for one in all_), sum(one.received for one in all_), sum(one.dropped for one in all_)
        )


def _wait(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + JOIN_S
    while not condition():
        if time.monotonic() > deadline:
            raise StartupError("leads and drafters do not see each other")
        time.sleep(0.01)


@dataclass(frozen=True, slots=True)
class Played:
    """due: messages that should have been said; spent: by the server meanwhile; client_s: processor time of
    the buses."""

    due: int
    counts: Counts
    spent: Usage
    seconds: float
    client_s: float

    @property
    def stopped_by(self) -> str:
        """What is at its end, or nothing."""
        if self.spent.cpu_s > FULL * self.seconds:
            return "the server"
        lost = self.counts.dropped or self.counts.received < self.counts.sent
        return "the buses" if lost or self.counts.sent < LATE * self.due else ""


@dataclass(frozen=True, slots=True)
class Cue:
    """at: share of the whole."""

    at: float
    bus: RedisBus
    to: str
    message: Message


def score(tape: Tape, crowd: Crowd, links: int) -> list[Cue]:
    """Each lead with `links` drafters: all as on the tape, but one after the other, so that not all say the
    same at once."""
    cues: list[Cue] = []
    n = len(crowd.leads) * links
    for i in range(n):
        lead, drafter = crowd.leads[i // links], crowd.drafters[i % len(crowd.drafters)]
        for one in tape.said:
            sender, to = (drafter, lead) if one.to_lead else (lead, drafter)
            at = (one.at_s / tape.seconds + i / n) % 1
            cues.append(Cue(at, crowd.buses[sender], to, between(one.message, lead, drafter)))
    return sorted(cues, key=lambda cue: cue.at)


def play(client: redis.Redis, crowd: Crowd, cues: Sequence[Cue], rate: float, seconds: float) -> Played:
    """Say the cues over and over for `seconds`, or until all are said that are due by then. rate: messages a
    second in all; 0: say nothing."""
    n_due = round(rate * seconds)
    counts, before = crowd.counts(), look(client)
    client_s, began = time.process_time(), time.monotonic()
    for i, cue in enumerate(islice(cycle(cues), n_due)):
        due_s = (i // len(cues) + cue.at) * len(cues) / rate
        ahead_s = due_s - (time.monotonic() - began)
        if ahead_s > 0:
            time.sleep(ahead_s)
        elif -ahead_s > seconds:
            break
        cue.bus.send(cue.to, cue.message)
    time.sleep(max(0.0, seconds - (time.monotonic() - began)))
    _settle(crowd, counts, n_due)
    took = time.monotonic() - began
    spent, client_s = look(client).since(before), time.process_time() - client_s
    return Played(n_due, crowd.counts().since(counts), spent, took, client_s)


def _settle(crowd: Crowd, before: Counts, n_said: int) -> None:
    """Wait until what was said has arrived, as far as it ever will."""
    seen, deadline = before, 0.0
    while True:
        now = crowd.counts().since(before)
        if now.sent + now.dropped >= n_said and now.received >= now.sent:
            return
        if now != seen:
            seen, deadline = now, time.monotonic() + SETTLE_S
        if time.monotonic() > deadline:
            return
        time.sleep(0.005)


def look(client: redis.Redis) -> Usage:
    return usage(client.info("cpu", "stats", "commandstats"))


class Press(ExitStack):
    """Inboxes that are written and read as fast as the server does it, by connections of their own: what is
    written is packed beforehand, n messages to a round trip. Reads wait for it, as those of a bus."""

    def __init__(self, url: str, data: Sequence[bytes], n: int) -> None:
        """data: messages, of which inboxes get different ones."""
        super().__init__()
        self._n = n
        self._client = self.enter_context(closing(connect(url)))
        own = Presence("press", "lead", "", "0", VocabularyCard(1, None, None, (0,)), 1)
        bus = self.enter_context(closing(RedisBus(url, POOL, own)))
        messages = [list(islice(cycle(data), i * n, (i + 1) * n)) for i in range(INBOXES)]
        self.size = mean(len(one) for some in messages for one in some)
        self._links, pool = list[_Link](), self._client.connection_pool
        for i, some in enumerate(messages):
            to = f"drafter:{unique_id(f'press-{i}')}"
            name = f"duo:{{{POOL}}}:{to}"
            first = self._client.xadd(name, {"w": b""})
            adds = [bus._append(to, b"m", one) for one in some]  # pyright: ignore[reportPrivateUsage]
            writer: Any = pool.get_connection()
            reader: Any = pool.get_connection()
            self._links.append(_Link(name, writer, reader, writer.pack_commands(adds), n, first))

    def run(self, seconds: float) -> Played:
        """Returns when all that was written is answered."""
        before, client_s, began = look(self._client), time.process_time(), time.monotonic()
        n_sent = received = 0
        for link in self._links:
            link.begin()
        while (took := time.monotonic() - began) < seconds:
            for link in self._links:
                received += link.finish()
                link.begin()
            n_sent += self._n * len(self._links)
        received += sum(link.finish() for link in self._links)
        n_sent += self._n * len(self._links)
        spent = look(self._client).since(before)
        return Played(n_sent, Counts(n_sent, received), spent, took, time.process_time() - client_s)


@dataclass(slots=True)
class _Link:
    """An inbox. packed: the n messages that are written at once; last: the entry read last."""

    name: str
    writer: Any
    reader: Any
    packed: list[bytes]
    n: int
    last: Any

    def begin(self) -> None:
        """Wait for entries, and write some."""
        self.reader.send_command("XREAD", "COUNT", READ_COUNT, "BLOCK", 1000, "STREAMS", self.name, self.last)
        self.writer.send_packed_command(self.packed)

    def finish(self) -> int:
        """How many entries were read."""
        for _ in range(self.n):
            self.writer.read_response()
        found = self.reader.read_response()[0][1]
        self.last = found[-1][0]
        return len(found)
