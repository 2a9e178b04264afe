"""deploy/haproxy before a pool of three leads: a client that comes back through it reads the whole reply."""

from __future__ import annotations

import signal
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import cast

import pytest
import redis

from tests.chaos.pool_replies import CHATS, RESPONSES, WHOLE_S, Reading
from tests.chaos.pools import Pool, live_pool
from tests.deploy.test_balancer import HAPROXY, balanced
from tests.process.duo import until

pytestmark = [
    pytest.mark.redis,
    pytest.mark.timeout(240),
    pytest.mark.skipif(HAPROXY is None, reason="no haproxy on this machine"),
]

RESPONSE, CHAT = 0, len(RESPONSES)
N_TOKENS = 1500  # of a reply: seconds


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Generator[Pool]:
    with live_pool(tmp_path_factory.mktemp("pool")) as pool:
        yield pool


@pytest.fixture(autouse=True)
def long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let replies last until their lead is ended: a fast machine would be done with them before."""
    for body in (RESPONSES[0], CHATS[0]):
        monkeypatch.setitem(body, "ignore_eos", True)
        monkeypatch.setitem(body, "max_tokens" if "max_tokens" in body else "max_output_tokens", N_TOKENS)


@pytest.mark.parametrize("what", [RESPONSE, CHAT])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_reply_outlives_its_lead(pool: Pool, tmp_path: Path, what: int, number: signal.Signals):
    expected = Reading(pool.ports, Random(1)).reply(what)
    leads = [f"127.0.0.1:{port}" for port in pool.ports]
    with (
        balanced(tmp_path, *leads) as url,
        ThreadPoolExecutor() as aside,
        redis.Redis.from_url(pool.redis.url) as client,
    ):
        before = set(_logs(client))
        reading = Reading([int(url.rpartition(":")[2])], Random(2))
        reply = aside.submit(reading.reply, what)
        until(lambda: _is_begun(client, before), WHOLE_S, "no event")
        [writer] = [i for i, port in enumerate(pool.ports) if pool.health(port)["slots"]["busy"]]
        pool.leads[writer].end(number)
        assert reply.result() == expected
    others = [one for i, one in enumerate(pool.leads) if i != writer]
    assert sum("goes on after event" in line for one in others for line in one.log) == 1
    for one in pool.leads:
        one.log.clear()
    pool.leads[writer].start()
    until(pool.is_whole, WHOLE_S, "no pool again")


def _logs(client: redis.Redis) -> list[bytes]:
    return cast("list[bytes]", client.keys("*:log"))


def _is_begun(client: redis.Redis, before: set[bytes]) -> bool:
    """Return True if the log of a new reply has events in several entries, so that a client has some."""
    return any(client.xlen(log) > 2 for log in set(_logs(client)) - before)
