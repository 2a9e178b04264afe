"""A pool of three leads, killed and drained under clients: `python -m tests.chaos.pools --seeds 0-199`.

Every reply is whole, without a gap or an event twice, and equals that of a lead that nothing disturbs.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import threading
import time
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from statistics import median, quantiles
from tempfile import TemporaryDirectory
from typing import Any, Literal, cast

import httpx
import redis

from tests.chaos.seeds import EACH, seeds_of
from tests.chaos.system import READY_S, Program
from tests.process.duo import free_port, until
from tests.redis.members import Server

N_LEADS, N_CLIENTS, N_REPLIES = 3, 16, 2  # replies of each client in a schedule
N_FAULTS, BEGIN_S, AWAY_S = (2, 4), 4.0, (0.1, 2.0)
WHOLE_S = 90.0  # maximum seconds of a reply, with all faults of a schedule

SCHEMA = {"type": "object", "properties": {"name": {"enum": ["duo", "solo"]}, "n": {"type": "integer"}}}
TOOL = {"type": "function", "name": "look", "parameters": {**SCHEMA, "required": ["name"]}}
LOGPROBS = {"top_logprobs": 2, "include": ["message.output_text.logprobs"]}
FORMAT = {"format": {"type": "json_schema", "name": "it", "schema": SCHEMA}}
LONG: dict[str, Any] = {"temperature": 1, "max_output_tokens": 400}
RESPONSES: list[dict[str, Any]] = [
    {"input": "Tell me about the sea.", "seed": 1, **LONG},
    {"input": "Explain what a list is.", "temperature": 0, "max_output_tokens": 400},
    {
        "input": "Name rivers.",
        "seed": 2,
        "top_logprobs": 2,
        "include": ["message.output_text.logprobs"],
        **LONG,
    },
    {
        "input": "Which?",
        "seed": 3,
        "text": {"format": {"type": "json_schema", "name": "it", "schema": SCHEMA}},
    },
    {"input": "Look for it.", "seed": 4, "tools": [TOOL], "tool_choice": "required", **LONG},
    {"input": "A poem.", "seed": 5, "repeat_penalty": 1.2, "dry_multiplier": 0.8, **LONG},
    {"input": "And then?", "seed": 6, "mirostat": 2, "mirostat_tau": 3.0, **LONG},
]
CHATS: list[dict[str, Any]] = [
    {"seed": 7, "temperature": 1, "max_tokens": 300, "n": 2, "logprobs": True},
    {"seed": 8, "temperature": 1, "max_tokens": 300, "stop": ["e, ", "q"]},
]
MESSAGES = [{"role": "user", "content": "Once upon a time"}]


class Pool:
    """Leads of one kin over one Redis, and when each was disturbed last."""

    def __init__(self, folder: Path) -> None:
        self.redis = Server()
        self.redis.start()
        self.ports = [free_port() for _ in range(N_LEADS)]
        self.faults: dict[int, tuple[float, str]] = {}  # by port: time and kind
        self.leads: list[Program] = []
        for i, port in enumerate(self.ports):
            flags = ["--redis", self.redis.url, "--port", str(port), "--threads", "1", "--ctx-size", "32768"]
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
    at_s: float
    lead: int
    kind: Literal["kill", "drain"]
    away_s: float  # until it is started again


def faults_of(seed: int) -> list[Fault]:
    chance = Random(seed)
    n = chance.randint(*N_FAULTS)
    times = sorted(chance.uniform(0.0, BEGIN_S) for _ in range(n))
    return [
        Fault(at_s, chance.randrange(N_LEADS), chance.choice(("kill", "drain")), chance.uniform(*AWAY_S))
        for at_s in times
    ]


@dataclass(slots=True)
class Played:
    """What a schedule showed. gaps: by kind of fault, seconds until the next event of a reply that it met."""

    problems: list[str] = field(default_factory=list[str])
    n_replies: int = 0
    gaps: dict[str, list[float]] = field(default_factory=lambda: {"kill": [], "drain": []})


class Client:
    """A client that asks for some replies, and comes back at another lead whenever a connection ends."""

    def __init__(self, pool: Pool, expected: list[Any], chance: Random, played: Played) -> None:
        self._pool, self._expected, self._chance, self._played = pool, expected, chance, played
        self._thread = threading.Thread(target=self._run, name="client")
        self._thread.start()

    def join(self) -> None:
        self._thread.join()

    def _run(self) -> None:
        for _ in range(N_REPLIES):
            what = self._chance.randrange(len(RESPONSES) + len(CHATS))
            try:
                seen = Reading(self._pool, self._chance, self._played).reply(what)
                if seen != self._expected[what]:
                    self._played.problems.append(f"reply {what}: {seen} instead of {self._expected[what]}")
            except Exception as error:
                self._played.problems.append(f"reply {what}: {type(error).__name__}: {error}")
            self._played.n_replies += 1


class Reading:
    """One reply, read over any number of connections.

    ports: Where it is asked for and read; None: at any lead.
    """

    def __init__(
        self, pool: Pool, chance: Random, played: Played, ports: Sequence[int] | None = None
    ) -> None:
        self._pool, self._chance, self._played = pool, chance, played
        self._ports = ports or pool.ports
        self._until = time.monotonic() + WHOLE_S
        self._met: tuple[float, str] | None = None  # the fault that ended the last connection
        self._got = b""

    def reply(self, what: int) -> Any:
        if what < len(RESPONSES):
            return self._response({**RESPONSES[what], "background": True, "stream": True})
        return self._chat({**CHATS[what - len(RESPONSES)], "messages": MESSAGES, "stream": True})

    def _response(self, body: dict[str, Any]) -> Any:
        self._read("POST", "/v1/responses", json=body)
        while True:
            events = _events(self._got)
            last = events[-1] if events else {}
            if last.get("type") in ("response.completed", "response.incomplete", "response.failed"):
                break
            if not events:
                self._read("POST", "/v1/responses", json=body)
                continue
            query = {"stream": "true", "starting_after": str(last["sequence_number"])}
            self._read("GET", f"/v1/responses/{events[0]['response']['id']}", params=query)
        return seen_of_response(_events(self._got))

    def _chat(self, body: dict[str, Any]) -> Any:
        name = f"{self._chance.getrandbits(64):x}"
        while not self._got:
            self._read("POST", "/v1/chat/completions", json=body, headers={"X-Conversation-Id": name})
        while not self._got.endswith(b"data: [DONE]\n\n"):
            self._read("GET", "/v1/stream", params={"conv_id": name, "from": str(len(self._got))})
        return seen_of_chat(_events(self._got))

    def _read(self, method: str, path: str, **more: Any) -> None:
        """Read what one connection to some lead gives until it ends; of an event that is cut, nothing."""
        assert time.monotonic() < self._until, f"it never ended: {self._got[-500:]!r}"
        port = self._chance.choice(self._ports)
        whole = len(self._got)
        try:
            with httpx.stream(method, f"http://127.0.0.1:{port}{path}", timeout=WHOLE_S, **more) as stream:
                if stream.status_code != 200:
                    stream.read()
                    assert stream.status_code in (404, 429, 503), stream.text
                    assert stream.status_code != 404 or "conv_id" in stream.text, stream.text
                    time.sleep(0.05)
                    return
                for chunk in stream.iter_raw():
                    self._got += chunk
                    if b"\n\n" in chunk and self._met is not None and b"data" in chunk:
                        at, kind = self._met
                        self._played.gaps[kind].append(time.monotonic() - at)
                        self._met = None
        except httpx.TransportError:
            time.sleep(0.02)
        finally:
            self._got = self._got[: self._got.rfind(b"\n\n") + 2] if b"\n\n" in self._got else b""
            fault = self._pool.faults.get(port)
            if len(self._got) > whole and fault is not None and time.monotonic() - fault[0] < 1.0:
                self._met = fault


def _events(stream: bytes) -> list[dict[str, Any]]:
    return [json.loads(line[6:]) for line in stream.splitlines() if line.startswith(b"data: {")]


def seen_of_response(events: list[dict[str, Any]]) -> Any:
    """Return what a response says; AssertionError for a gap, a repeat, or deltas unlike the whole."""
    numbers = [one["sequence_number"] for one in events]
    assert numbers == list(range(len(numbers))), f"a gap or a repeat: {numbers}"
    response = events[-1]["response"]
    assert response["status"] in ("completed", "incomplete"), response
    deltas = "".join(one["delta"] for one in events if one["type"].endswith(".delta"))
    said = [item.get("arguments") or item["content"][0]["text"] for item in response["output"]]
    assert deltas == "".join(said), f"deltas {deltas!r} unlike {said!r}"
    done = [one["item"] for one in events if one["type"] == "response.output_item.done"]
    assert done == response["output"]
    plain = [{name: value for name, value in item.items() if "id" not in name} for item in done]
    return json.dumps([plain, response["status"], response["usage"]["output_tokens"]], sort_keys=True)


def seen_of_chat(events: list[dict[str, Any]]) -> Any:
    """Return what the choices of a chat completion say."""
    said, logprobs, ends = dict[int, str](), dict[int, str](), dict[int, Any]()
    for part in events:
        assert "error" not in part, part
        for choice in part["choices"]:
            at = choice["index"]
            said[at] = said.get(at, "") + (choice["delta"].get("content") or "")
            for one in cast("list[dict[str, Any]]", (choice["logprobs"] or {}).get("content") or []):
                logprobs[at] = logprobs.get(at, "") + f" {one['token']} {one['logprob']}"
            ends[at] = choice["finish_reason"] or ends.get(at)
    assert len({part["id"] for part in events}) == 1
    return json.dumps([said, logprobs, ends], sort_keys=True)


def undisturbed(pool: Pool) -> list[Any]:
    """Return the replies of a lead that nothing disturbs."""
    found = list[Any]()
    for what in range(len(RESPONSES) + len(CHATS)):
        played = Played()
        found.append(Reading(pool, Random(what), played).reply(what))
    return found


def play(pool: Pool, expected: list[Any], seed: int) -> Played:
    """Play the faults of a seed under clients, and return what they saw once every lead is back."""
    played, chance = Played(), Random(seed)
    clients = [Client(pool, expected, Random(chance.getrandbits(64)), played) for _ in range(N_CLIENTS)]
    began = time.monotonic()
    restarts = list[threading.Thread]()
    try:
        for fault in faults_of(seed):
            time.sleep(max(0.0, began + fault.at_s - time.monotonic()))
            if any(one.name == str(fault.lead) and one.is_alive() for one in restarts):
                continue  # it has not come back from the last one
            pool.faults[pool.ports[fault.lead]] = time.monotonic(), fault.kind
            again = threading.Thread(target=_disturb, args=(pool, fault), name=str(fault.lead))
            again.start()
            restarts.append(again)
    finally:
        for one in [*restarts, *clients]:
            one.join()
    until(pool.is_whole, READY_S, f"no pool again: {[lead.log[-5:] for lead in pool.leads]}")
    until(lambda: all(_is_idle(pool.health(port)) for port in pool.ports), READY_S, "a slot stays busy")
    for lead in pool.leads:
        log = "\n".join(lead.log)
        lead.log.clear()
        if "Traceback" in log:
            played.problems.append(log[log.index("Traceback") - 500 :])
    with redis.Redis.from_url(pool.redis.url) as client:
        until(lambda: not _keys(client, "*:open:*"), READY_S, "a reply stays open")
        played.problems += [f"{key} has no TTL" for key in _keys(client, "*") if client.ttl(key) == -1]
    return played


def _keys(client: redis.Redis, pattern: str) -> list[bytes]:
    return cast("list[bytes]", client.keys(pattern))


def _disturb(pool: Pool, fault: Fault) -> None:
    lead = pool.leads[fault.lead]
    lead.end(signal.SIGKILL if fault.kind == "kill" else signal.SIGTERM)
    time.sleep(fault.away_s)
    lead.start()


def _is_idle(health: dict[str, Any]) -> bool:
    return bool(health) and health["slots"]["busy"] == health["queued"] == 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.pools", description="Pools under faults.")
    parser.add_argument("--seeds", type=seeds_of, default=range(20), help="how many, or FIRST-LAST")
    args = parser.parse_args()
    seeds, n_well, n_replies = list[int](args.seeds), 0, 0
    gaps: dict[str, list[float]] = {"kill": [], "drain": []}
    while seeds:
        part, seeds = seeds[:EACH], seeds[EACH:]
        with TemporaryDirectory(prefix="duo-pool-", dir="/tmp") as folder, live_pool(Path(folder)) as pool:
            expected = undisturbed(pool)
            for seed in part:
                played = play(pool, expected, seed)
                n_well, n_replies = n_well + (not played.problems), n_replies + played.n_replies
                for kind, found in played.gaps.items():
                    gaps[kind] += found
                kinds = [f"{fault.kind} {fault.lead}" for fault in faults_of(seed)]
                print(seed, ", ".join(kinds), *played.problems[:3] or ["well"], flush=True)
    print(f"{n_well} of {len(args.seeds)} schedules went well, with {n_replies} replies compared")
    for kind, found in gaps.items():
        if len(found) > 1:
            p95 = quantiles(found, n=20)[-1]
            print(f"next event after a {kind}: median {median(found):.2f} s, p95 {p95:.2f} s of {len(found)}")
    return n_well < len(args.seeds)


if __name__ == "__main__":
    sys.exit(main())
