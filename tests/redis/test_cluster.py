"""A server of a cluster takes all that the bus does: every transaction stays in one slot."""

from __future__ import annotations

import string
from collections.abc import Generator
from typing import Any, cast

import pytest
import redis
from members import POOL, Member, Server, eventually
from redis.exceptions import ClusterCrossSlotError

from server.speculation.wire.messages import Close, Message, Want
from server.speculation.wire.redis_client import check
from server.speculation.wire.streams import MAX_MEMBERS
from tests.process.duo import free_port

pytestmark = [pytest.mark.redis, pytest.mark.timeout(120)]

COMMANDS = set("DEL GETRANGE PEXPIRE SADD SCARD SET SRANDMEMBER SREM UNLINK XADD XREAD XTRIM".lower().split())


@pytest.fixture
def node() -> Generator[Server]:
    """Yield the only server of a cluster, which has all slots and refuses commands on two of them.

    By itself it would take a second port that is 10,000 higher, which an outgoing connection may have.
    """
    ports = "--port", str(free_port()), "--cluster-port", str(free_port())
    server = Server(*ports, "--bind", "127.0.0.1", "--cluster-enabled", "yes")
    try:
        server.start()
        with redis.Redis.from_url(server.url, decode_responses=True) as client:
            client.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
            eventually(lambda: _state(client) == "ok")
        yield server
    finally:
        server.remove()


def test_all_that_the_bus_does_is_taken(node: Server):
    with redis.Redis.from_url(node.url, decode_responses=True) as client:
        _everything(node, client)
        counts = calls(client)
        assert counts.keys() >= COMMANDS
        failed = {name for name, one in counts.items() if one["rejected_calls"] or one["failed_calls"]}
        assert failed == set()
        with pytest.raises(ClusterCrossSlotError):
            client.mget("duo:{one}:members", "duo:{two}:members")  # what it does refuse


def _everything(node: Server, client: redis.Redis) -> None:
    check(node.url, POOL, "lead:L")
    lead, drafter = Member(node.url, "L", "lead").start(), Member(node.url, "D", "drafter").start()
    gone = Member(node.url, "G", "drafter").start()
    try:
        lead.wait_to_see("D", "G")
        drafter.wait_to_see("L")
        down: list[Message] = [Close("L", i, True) for i in range(100)]
        for message in down:
            lead.bus.send("D", message)
        drafter.bus.send("L", Want("D", 1, 1))
        drafter.wait(lambda: drafter.messages == down)
        lead.wait(lambda: lead.messages == [Want("D", 1, 1)])
        client.sadd(f"duo:{{{POOL}}}:members", "drafter:nobody")  # is found to be gone
        gone.bus.close()
        lead.wait_to_see("D")
        eventually(lambda: "srem" in calls(client))
        client.sadd(
            f"duo:{{{POOL}}}:members", *(f"lead:{a}{b}{c}" for a in LETTERS for b in LETTERS for c in "xyz")
        )
        eventually(lambda: "unlink" in calls(client))
        lead.wait_to_see("D")
    finally:
        for member in (lead, drafter, gone):
            member.bus.close()


def _state(client: redis.Redis) -> str:
    said = cast(str, client.execute_command("CLUSTER", "INFO"))
    return said.splitlines()[0].removeprefix("cluster_state:")


LETTERS = string.ascii_lowercase
assert len(LETTERS) ** 2 * 3 > MAX_MEMBERS


def calls(client: redis.Redis) -> dict[str, dict[str, Any]]:
    """Return by command how often it was called, rejected and failed."""
    found = cast(dict[str, dict[str, Any]], client.info("commandstats"))
    return {name.removeprefix("cmdstat_"): one for name, one in found.items()}
