"""When the master dies that sentinels watch, both sides of the bus find the replica."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeAlias, cast

import pytest
import redis
from members import POOL, Member, eventually
from redis.sentinel import SentinelConnectionPool, SentinelManagedSSLConnection

from server.errors import StartupError
from server.speculation.wire.messages import Close
from server.speculation.wire.presence import Role
from server.speculation.wire.redis_client import check, connect
from server.speculation.wire.redis_url import shown_url
from tests.process.duo import free_port
from tests.process.sentinels import SERVICE, Watched

pytestmark = [pytest.mark.redis, pytest.mark.timeout(120)]

Join: TypeAlias = Callable[[str, Role], Member]


@pytest.fixture
def watched(tmp_path: Path) -> Generator[Watched]:
    with ExitStack() as ending:
        yield Watched(tmp_path, ending, POOL)


@pytest.fixture
def join(watched: Watched) -> Generator[Join]:
    with ExitStack() as ending:

        def join(id: str, role: Role) -> Member:
            check(watched.url(role), POOL, f"{role}:{id}")
            member = Member(watched.url(role), id, role).start()
            ending.callback(member.bus.close)
            return member

        yield join


def test_dead_master_yields_to_replica(watched: Watched, join: Join, caplog: pytest.LogCaptureFixture):
    lead, drafter = join("L", "lead"), join("D", "drafter")
    lead.wait_to_see("D")
    drafter.wait_to_see("L")
    lead.bus.send("D", Close("L", 1, True))
    drafter.wait(lambda: drafter.messages == [Close("L", 1, True)])
    watched.kill_master()
    lead.wait_to_see()
    lead.wait_to_see("D")
    drafter.wait_to_see("L")
    assert watched.role_of(watched.ports[1]) == "master"
    lead.bus.send("D", Close("L", 2, True))
    drafter.bus.send("L", Close("D", 3, True))
    drafter.wait(lambda: drafter.messages[-1:] == [Close("L", 2, True)])
    lead.wait(lambda: lead.messages[-1:] == [Close("D", 3, True)])
    assert f"127.0.0.1:{watched.sentinel_port}/{SERVICE} is back" in caplog.text
    assert "watch" not in caplog.text


def test_a_master_that_steps_down_is_left(watched: Watched, join: Join):
    """It still answers, as a replica that accepts nothing."""
    lead, drafter = join("L", "lead"), join("D", "drafter")
    lead.wait_to_see("D")
    eventually(watched.begins_failover)
    eventually(lambda: watched.role_of(watched.ports[0]) == "slave")

    def arrives() -> bool:
        lead.bus.send("D", Close("L", 2, True))
        return Close("L", 2, True) in drafter.messages

    eventually(arrives)


def test_start_waits_for_a_master(
    watched: Watched, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """There is no replica to promote, so the sentinel keeps watching the known master."""
    watched.replica.kill()
    watched.be_attentive()
    watched.master.send_signal(signal.SIGSTOP)
    eventually(watched.is_down)

    def wake(_: float) -> None:
        watched.master.send_signal(signal.SIGCONT)

    monkeypatch.setattr(time, "sleep", wake)
    check(watched.url("lead"), POOL, "lead:L")
    assert caplog.text.count("the sentinels' master is down") == 1


def test_a_start_does_not_wait_for_ever(watched: Watched, monkeypatch: pytest.MonkeyPatch):
    watched.replica.kill()
    watched.kill_master()
    eventually(watched.is_down)
    monkeypatch.setattr("server.speculation.wire.redis_client.FAILOVER_S", 0.2)
    with pytest.raises(StartupError, match="knows a master that is up"):
        check(watched.url("lead"), POOL, "lead:L")


def test_unwatched_service_fails_at_once(watched: Watched, monkeypatch: pytest.MonkeyPatch):
    def fail(_: float) -> None:
        pytest.fail("it waits")

    monkeypatch.setattr(time, "sleep", fail)
    with pytest.raises(StartupError, match="knows a master that is up"):
        check(watched.url("lead").replace(f"/{SERVICE}", "/another"), POOL, "lead:L")


@pytest.mark.parametrize(
    "url",
    [
        "redis+sentinel://host:26379",
        "redis+sentinel://host:26379/",
        "redis+sentinel:///drafts",
        "redis+sentinel://host:port/drafts",
        "redis+sentinel://one,,two/drafts",
        "http+sentinel://host/drafts",
    ],
)
def test_a_malformed_url_is_told(url: str):
    with pytest.raises(StartupError, match=r"redis\+sentinel://"):
        connect(url)


def test_sentinel_url_is_parsed():
    url = "rediss+sentinel://me:p%40ss@a,[::1]:99/the%20one/3?ssl_ca_certs=/ca.pem&sentinel_username=s"
    client = connect(url)
    pool = client.connection_pool
    assert isinstance(pool, SentinelConnectionPool)
    assert pool.service_name == "the one"
    said: dict[str, Any] = pool.connection_kwargs
    assert (said["username"], said["password"], said["db"]) == ("me", "p@ss", 3)
    sentinels = [
        one.connection_pool for one in cast(list[redis.Redis], cast(Any, pool).sentinel_manager.sentinels)
    ]
    asked: list[dict[str, Any]] = [one.connection_kwargs for one in sentinels]
    assert [(one["host"], one["port"]) for one in asked] == [("a", 26379), ("::1", 99)]
    assert (asked[0]["username"], asked[0].get("password")) == ("s", None)
    assert asked[0]["ssl_ca_certs"] == said["ssl_ca_certs"] == "/ca.pem"
    classes = {one.connection_class for one in (*sentinels, pool)}
    assert classes == {redis.SSLConnection, SentinelManagedSSLConnection}
    assert shown_url(url) == "rediss+sentinel://a,[::1]:99/the%20one/3"
    client.close()


def test_sentinels_that_nobody_reaches_are_told():
    with pytest.raises(StartupError, match="knows a master that is up") as caught:
        check(f"redis+sentinel://:secret@127.0.0.1:1,127.0.0.1:{free_port()}/drafts")
    assert "\n" not in caught.value.message
    assert "secret" not in caught.value.message
