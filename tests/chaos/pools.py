"""A pool of three leads, killed and drained under clients: `python -m tests.chaos.pools --seeds 0-199`.

Every reply is whole, without a gap or an event twice, and equals that of a lead that nothing disturbs.
Prints a line of JSON for each seed, see Played.report(), and at the end how many went well. Exit status 1 if
any did not.
"""

from __future__ import annotations

import argparse
import json
import re
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from statistics import median, quantiles
from tempfile import TemporaryDirectory
from typing import Any, Literal, NamedTuple, cast, get_args

import httpx
import redis

from server.settings import BUNDLED_MODEL
from tests.chaos.pool_replies import N_KINDS, Flaw, FlawError, Reading
from tests.chaos.seeds import EACH, seeds_of
from tests.chaos.system import READY_S, Program
from tests.process.duo import free_port, until
from tests.redis.members import Server

N_LEADS, N_CLIENTS, N_REPLIES = 3, 16, 2  # replies of each client in a schedule
N_FAULTS, AWAY_S, POLL_S = (2, 4), (0.1, 2.0), 0.002
LAST_FAULT = 0.8  # share of all events after which no fault strikes
FLAWS: dict[str, Flaw] = {
    "gaps": "gap",
    "repeats": "repeat",
    "unequal": "unequal",
    "incomplete": "incomplete",
}


class Pool:
    """Leads of one group over one Redis, and when each was disturbed last."""

    def __init__(self, folder: Path) -> None:
        self.redis = Server()
        self.redis.start()
        self.ports = [free_port() for _ in range(N_LEADS)]
        self.leads: list[Program] = []
        for i, port in enumerate(self.ports):
            flags = ["--redis", self.redis.url, "--port", str(port), "--threads", "1", "--ctx-size", "32768"]
            flags += ["--model", str(BUNDLED_MODEL)]  # named only, so that none is fetched
            flags += ["--parallel", "8", "--grace", "1", "--draft-max", "0", "--no-embeddings"]
            flags += ["--cache-ram", "8", "--cache-dir", str(folder / "conversations"), "--cache-disk", "64"]
            self.leads.append(Program(f"lead-{i}", True, ["serve", *flags], folder))

    def is_whole(self) -> bool:
        return all(len(self.health(port).get("pool", ())) == N_LEADS for port in self.ports)

    def health(self, port: int) -> dict[str, Any]:
        with suppress(httpx.HTTPError, ValueError):
            return httpx.get(f"http://127.0.0.1:{port}/health", timeout=5).json()
        return {}

    def close(self) -> None:
        with ExitStack() as stack:
            stack.callback(self.redis.remove)
            for lead in self.leads:
                stack.callback(lead.end)


@contextmanager
def live_pool(folder: Path) -> Generator[Pool]:
    pool = Pool(folder)
    try:
        until(pool.is_whole, READY_S, f"no pool: {[lead.log[-5:] for lead in pool.leads]}")
        yield pool
    finally:
        pool.close()


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault of one lead. What clients have read decides when it strikes, not how fast the machine is."""

    after: float  # share of all events of responses that clients read before it
    lead: int
    kind: Literal["kill", "drain"]
    away_s: float  # until it is started again


def faults_of(seed: int) -> list[Fault]:
    chance = Random(seed)
    n = chance.randint(*N_FAULTS)
    shares = sorted(chance.uniform(0.0, LAST_FAULT) for _ in range(n))
    return [
        Fault(after, chance.randrange(N_LEADS), chance.choice(("kill", "drain")), chance.uniform(*AWAY_S))
        for after in shares
    ]


@dataclass(frozen=True, slots=True)
class Struck:
    """A fault that was played."""

    lead: int
    kind: str
    at: float  # monotonic seconds


@dataclass(slots=True)
class Played:
    """What a schedule showed.

    waits: By kind of fault, seconds from it until the next event of a response of that lead came to a client.
    """

    problems: list[str] = field(default_factory=list[str])
    counts: Counter[str] = field(default_factory=Counter[str])  # of replies and flaws
    readings: list[Reading] = field(default_factory=list[Reading])
    faults: list[Struck] = field(default_factory=list[Struck])
    waits: dict[str, list[float]] = field(default_factory=lambda: {"kill": [], "drain": []})

    def report(self) -> dict[str, Any]:
        """Return it as JSON: `complete` are replies without any flaw."""
        counts, n_flawed = self.counts, sum(self.counts[flaw] for flaw in get_args(Flaw))
        return {
            "replies": counts["replies"],
            "complete": counts["replies"] - n_flawed,
            **{name: counts[flaw] for name, flaw in FLAWS.items()},
            **{f"{kind}s": sum(one.kind == kind for one in self.faults) for kind in self.waits},
            **{f"after_{kind}_s": [round(s, 3) for s in found] for kind, found in self.waits.items()},
            "problems": self.problems,
        }


class Expected(NamedTuple):
    """A reply that nothing disturbs."""

    seen: str  # what it says, as Reading.reply() returns it
    n_events: int  # with a sequence number, which a chat's events lack


class Client:
    """A client that asks for some replies, and comes back at another lead whenever a connection ends."""

    def __init__(self, pool: Pool, expected: Sequence[Expected], chance: Random, played: Played) -> None:
        self._pool, self._chance, self._played = pool, chance, played
        self._asked = [(what, expected[what]) for what in chance.choices(range(N_KINDS), k=N_REPLIES)]
        self._thread = threading.Thread(target=self._run, name="client")
        self._thread.start()

    @property
    def n_events(self) -> int:
        """Return the number of events of all its responses."""
        return sum(expected.n_events for _, expected in self._asked)

    def is_reading(self) -> bool:
        return self._thread.is_alive()

    def join(self) -> None:
        self._thread.join()

    def _run(self) -> None:
        for what, expected in self._asked:
            flaws = list[Flaw]()
            reading = Reading(self._pool.ports, self._chance, expected.n_events)
            self._played.readings.append(reading)
            try:
                seen = reading.reply(what)
                if seen != expected.seen:
                    raise FlawError("unequal", f"{seen} instead of {expected.seen}")
            except Exception as error:
                known: Flaw | None = error.flaw if isinstance(error, FlawError) else None
                flaws.append(known or "incomplete")
                self._played.problems.append(f"reply {what}: {type(error).__name__}: {error}")
            self._played.counts.update(["replies", *flaws])


def undisturbed(pool: Pool) -> list[Expected]:
    """Return the replies of a lead that nothing disturbs."""
    readings = [Reading(pool.ports, Random(what)) for what in range(N_KINDS)]
    return [Expected(reading.reply(what), reading.n_events) for what, reading in enumerate(readings)]


def play(pool: Pool, expected: Sequence[Expected], seed: int) -> Played:
    """Play the faults of a seed under clients, and return what they saw once every lead is back."""
    played, chance = Played(), Random(seed)
    clients = [Client(pool, expected, Random(chance.getrandbits(64)), played) for _ in range(N_CLIENTS)]
    restarts = list[threading.Thread]()
    try:
        for fault in faults_of(seed):
            _wait_for(fault, pool.ports[fault.lead], clients, played)
            if any(one.name == str(fault.lead) and one.is_alive() for one in restarts):
                continue  # it has not come back from the last one
            played.faults.append(Struck(fault.lead, fault.kind, time.monotonic()))
            again = threading.Thread(target=_disturb, args=(pool, fault), name=str(fault.lead))
            again.start()
            restarts.append(again)
    finally:
        for one in [*restarts, *clients]:
            one.join()
    _until_calm(pool)
    _note_waits(pool, played)
    for lead in pool.leads:
        log = "\n".join(lead.log)
        lead.log.clear()
        if "Traceback" in log:
            played.problems.append(log[log.index("Traceback") - 500 :])
    with redis.Redis.from_url(pool.redis.url) as client:
        played.problems += [f"{key} has no TTL" for key in _keys(client, "*") if client.ttl(key) == -1]
    return played


def _wait_for(fault: Fault, port: int, clients: Sequence[Client], played: Played) -> None:
    """Wait until the fault is due and a client begins a response of the lead at `port`, or all have ended."""
    n_before = fault.after * sum(client.n_events for client in clients)
    while any(client.is_reading() for client in clients):
        readings = list(played.readings)
        if sum(one.n_events for one in readings) >= n_before and any(one.is_at(port) for one in readings):
            return
        time.sleep(POLL_S)


def _until_calm(pool: Pool) -> None:
    """Wait until every lead is back and idle, and no reply is open."""
    until(pool.is_whole, READY_S, f"no pool again: {[lead.log[-5:] for lead in pool.leads]}")
    until(lambda: all(_is_idle(pool.health(port)) for port in pool.ports), READY_S, "a slot stays busy")
    with redis.Redis.from_url(pool.redis.url) as client:
        until(lambda: not _keys(client, "*:open:*"), READY_S, "a reply stays open")


def _note_waits(pool: Pool, played: Played) -> None:
    """Note how long each take-up of a response took, from the fault to the next event at the client."""
    taken = dict[str, dict[int, int]]()  # by response and event, the lead that went on after it
    for i, lead in enumerate(pool.leads):
        for id, n in re.findall(r"(\S+) goes on after event (-?\d+)", "\n".join(lead.log)):
            taken.setdefault(id, {})[int(n)] = i
    for reading in played.readings:
        writer = pool.ports.index(reading.asked_of)
        for n, later in sorted(taken.get(reading.id, {}).items()):
            at = min((at for number, at in reading.arrivals.items() if number > n), default=0.0)
            before = [one for one in played.faults if one.lead == writer and one.at < at]
            if before:
                played.waits[before[-1].kind].append(at - before[-1].at)
            writer = later


def _keys(client: redis.Redis, pattern: str) -> list[bytes]:
    return cast("list[bytes]", client.keys(pattern))


def _disturb(pool: Pool, fault: Fault) -> None:
    lead = pool.leads[fault.lead]
    lead.end(signal.SIGKILL if fault.kind == "kill" else signal.SIGTERM)
    time.sleep(fault.away_s)
    lead.start()


def _is_idle(health: dict[str, Any]) -> bool:
    return bool(health) and health["slots"]["busy"] == health["queued"] == 0


def _played(seeds: Sequence[int]) -> Generator[tuple[int, Played]]:
    """Play seeds to one pool, until one meets a problem."""
    with TemporaryDirectory(prefix="duo-pool-", dir="/tmp") as folder, live_pool(Path(folder)) as pool:
        expected = undisturbed(pool)
        for seed in seeds:
            try:
                played = play(pool, expected, seed)
            except AssertionError as error:
                played = Played([f"{type(error).__name__}: {error}"])
            yield seed, played
            if played.problems:
                return


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.pools", description="Pools under faults.")
    parser.add_argument("--seeds", type=seeds_of, default=range(20), help="how many, or FIRST-LAST")
    args = parser.parse_args()
    seeds, n_well, n_replies = list[int](args.seeds), 0, 0
    waits: dict[str, list[float]] = {"kill": [], "drain": []}
    began = time.monotonic()
    while seeds:
        for seed, played in _played(seeds[:EACH]):
            seeds.remove(seed)
            n_well, n_replies = n_well + (not played.problems), n_replies + played.counts["replies"]
            for kind, found in played.waits.items():
                waits[kind] += found
            seconds, began = round(time.monotonic() - began, 1), time.monotonic()
            print(json.dumps({"seed": seed, **played.report(), "seconds": seconds}), flush=True)
    print(f"{n_well} of {len(args.seeds)} schedules went well, with {n_replies} replies compared")
    for kind, found in waits.items():
        if len(found) > 1:
            p95 = quantiles(found, n=20)[-1]
            print(f"next event after a {kind}: median {median(found):.2f} s, p95 {p95:.2f} s of {len(found)}")
    return n_well < len(args.seeds)


if __name__ == "__main__":
    sys.exit(main())
