"""A pool of leads in earnest, with toys for models; `make chaos` plays many seeds."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from server.replies.log_writing import AWAITED_MS
from tests.chaos.pool_replies import MESSAGES
from tests.chaos.pools import Pool, faults_of, live_pool, play, undisturbed
from tests.chaos.system import READY_S
from tests.process.duo import until

SEED = 4  # a kill, then a drain
ENDLESS: dict[str, Any] = {"ignore_eos": True, "temperature": 0, "stream": True}
NOT_TAKEN_UP: dict[str, tuple[str, dict[str, Any]]] = {
    "beams": ("/v1/chat/completions", {"messages": MESSAGES, "n_beams": 3, **ENDLESS}),
    "another API": ("/completion", {"prompt": "hello", **ENDLESS}),
}


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Generator[Pool]:
    with live_pool(tmp_path_factory.mktemp("pool")) as pool:
        yield pool


def test_schedules_kill_and_drain_every_lead():
    faults = [fault for seed in range(200) for fault in faults_of(seed)]
    assert {(fault.lead, fault.kind) for fault in faults} == {
        (lead, kind) for lead in range(3) for kind in ("kill", "drain")
    }


@pytest.mark.redis
@pytest.mark.timeout(240)
def test_replies_outlive_their_leads(pool: Pool):
    played = play(pool, undisturbed(pool), SEED)
    assert played.problems == []
    assert played.waits["kill"]
    assert played.waits["drain"]


@pytest.mark.redis
@pytest.mark.timeout(240)
def test_reply_that_nobody_takes_up_says_so(pool: Pool):
    first, second = (f"http://127.0.0.1:{port}" for port in pool.ports[:2])
    kinds = list(NOT_TAKEN_UP)
    with ThreadPoolExecutor() as each:
        list(each.map(_begin, [first] * len(kinds), kinds))
        pool.leads[0].end(signal.SIGKILL)
        killed = time.monotonic()
        for kind, end in zip(kinds, each.map(_end, [second] * len(kinds), kinds), strict=True):
            assert "no other server continues it" in end["error"]["message"], kind
    assert time.monotonic() - killed < AWAITED_MS / 1e3 + READY_S / 6
    pool.leads[0].start()
    until(pool.is_whole, READY_S, "no pool again")


def _begin(url: str, kind: str) -> None:
    """Ask for a reply, and leave it after its first event."""
    path, body = NOT_TAKEN_UP[kind]
    with httpx.stream("POST", url + path, json=body, headers={"X-Conversation-Id": kind}, timeout=60) as one:
        assert next(one.iter_lines()).startswith("data: "), one


def _end(url: str, kind: str) -> dict[str, Any]:
    """Return the last event that a lead tells of a reply."""
    told = httpx.get(f"{url}/v1/stream", params={"conv_id": kind}, timeout=120)
    assert told.status_code == 200, told.text
    *_, last = (line for line in told.text.splitlines() if line.startswith("data: "))
    return json.loads(last[6:])
