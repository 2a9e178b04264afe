"""The bus when the server or a peer fails: never an exception, never a wait, and all is well afterwards."""

from __future__ import annotations

import os
import signal
import socketserver
import subprocess
import sys
import threading
from collections.abc import Generator
from pathlib import Path

import pytest
import redis
from conftest import Join
from members import Member, Server, eventually, presence
from test_orphans import RECIPE, frozen, lead
from test_replies import ANNA, until

from server.errors import StartupError
from server.replies import log_writing, redis_link, redis_store
from server.replies.reply_log import UNSTORED
from server.speculation.wire.messages import Close, Commit
from server.speculation.wire.redis_client import check
from server.speculation.wire.streams import BUS_BACKLOG, RedisBus
from tests.server.replies.reading import event

pytestmark = pytest.mark.redis

DRAFTER = """
import sys, threading
sys.path.insert(0, sys.argv[1])
from members import Member
Member(sys.argv[2], "S", "drafter").start()
threading.Event().wait()
"""


@pytest.fixture
def pair(server: Server) -> Generator[tuple[Member, Member]]:
    lead, drafter = Member(server.url, "L", "lead"), Member(server.url, "D", "drafter")
    lead.start()
    drafter.start()
    lead.wait_to_see("D")
    drafter.wait_to_see("L")
    yield lead, drafter
    lead.bus.close()
    drafter.bus.close()


def test_a_server_killed_and_started_again(
    server: Server, pair: tuple[Member, Member], caplog: pytest.LogCaptureFixture
) -> None:
    lead, drafter = pair
    server.kill()
    lead.wait_to_see()
    drafter.wait_to_see()
    lead.bus.send("D", Close("L", 1, True))
    server.start()
    lead.wait_to_see("D")
    drafter.wait_to_see("L")
    lead.bus.send("D", Close("L", 2, True))
    drafter.wait(lambda: drafter.messages == [Close("L", 2, True)])
    assert [[peer.id for peer in peers] for peers in lead.peers_seen] == [["D"], [], ["D"]]
    assert lead.bus.counts["dropped"] == 1
    said = [record.getMessage() for record in caplog.records if record.name == "duo.bus"]
    assert sum("lost the Redis server" in line for line in said) == 2  # one each, not one per attempt
    assert sum("is back" in line for line in said) == 2


def test_nothing_blocks_without_a_server() -> None:
    """The test would run out of time if a send took 25 ms."""
    server = Server()
    member = Member(server.url, "L", "lead").start()
    try:
        for i in range(5000):
            member.bus.send("D", Commit(1, i, i, (i,)))
        assert member.bus.counts["dropped"] == 5000
        server.start()  # a server that comes later is found
        drafter = Member(server.url, "D", "drafter").start()
        member.wait_to_see("D")
        drafter.bus.close()
    finally:
        member.bus.close()
        server.remove()


def test_nothing_blocks_on_a_server_that_hangs(server: Server, pair: tuple[Member, Member]) -> None:
    """The server goes on only at the end, so waiting for it would last for ever."""
    lead, _ = pair

    def is_full() -> bool:
        for i in range(BUS_BACKLOG):
            lead.bus.send("D", Commit(1, i, i, (i,)))
        return lead.bus.counts["dropped"] >= BUS_BACKLOG

    assert server.process is not None
    os.kill(server.process.pid, signal.SIGSTOP)
    os.waitpid(server.process.pid, os.WUNTRACED)  # it has stopped
    try:
        eventually(is_full)
        lead.wait_to_see()  # it is noticed
        lead.bus.close()
    finally:
        os.kill(server.process.pid, signal.SIGCONT)


def test_a_peer_that_is_stopped_and_continued(join: Join, url: str) -> None:
    lead = join("L", "lead")
    here = Path(__file__).parent
    process = subprocess.Popen([sys.executable, "-c", DRAFTER, str(here), url], cwd=here.parents[1])
    try:
        lead.wait_to_see("S")
        process.send_signal(signal.SIGSTOP)
        lead.wait_to_see()
        process.send_signal(signal.SIGCONT)
        lead.wait_to_see("S")
        process.kill()
        lead.wait_to_see()
    finally:
        process.kill()
        process.wait()


def test_a_password(caplog: pytest.LogCaptureFixture) -> None:
    server = Server("--requirepass", "sesame")
    try:
        server.start()
        with pytest.raises(StartupError, match="wants a user or password"):
            check(server.url)
        with pytest.raises(StartupError, match="put them in the URL"):
            check(f"{server.url}?password=wrong")
        url = f"unix://default@{server.socket}?password=sesame&db=0"
        check(url)
        lead, drafter = Member(url, "L", "lead").start(), Member(url, "D", "drafter").start()
        lead.wait_to_see("D")
        server.kill()
        lead.wait_to_see()
        lead.bus.close()
        drafter.bus.close()
    finally:
        server.remove()
    assert "lost the Redis server" in caplog.text
    assert "sesame" not in caplog.text


def test_a_usable_server_passes_the_check(url: str) -> None:
    check(url)


class _Forgetful(socketserver.BaseRequestHandler):
    """Answers every third connection, as if packets were lost."""

    n_connections = 0

    def handle(self) -> None:
        type(self).n_connections += 1
        while command := self.request.recv(4096):
            if self.n_connections % 3 == 0:
                self.request.sendall(b"+PONG\r\n" if b"PING" in command else b":0\r\n")


def test_slow_server_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.speculation.wire.redis_client.IO_TIMEOUT_S", 0.5)
    with socketserver.TCPServer(("127.0.0.1", 0), _Forgetful) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            check(f"redis://127.0.0.1:{server.server_address[1]}")
        finally:
            server.shutdown()
            thread.join()
    assert _Forgetful.n_connections == 3


@pytest.mark.parametrize(
    "url",
    ["redis://127.0.0.1:1", "unix:///nowhere/socket", "rediss://127.0.0.1:1/0", "redis://no.invalid:6379"],
)
def test_unreachable_server_is_one_line(url: str) -> None:
    with pytest.raises(StartupError, match="cannot reach a Redis server at") as caught:
        check(url)
    assert "\n" not in caught.value.message
    assert url in caught.value.message
    assert "--redis" in caught.value.message


@pytest.mark.parametrize(
    "url",
    [
        "",
        "localhost:6379",
        "http://localhost",
        "redis://localhost:port",
        "redis://localhost?no_such_option=1",
        "redis://:password@localhost?credential_provider=x",
        "rediss://localhost?ssl_cert_reqs=sometimes",
        "redis+sentinel://localhost/service?no_such_option=1",
        "redis+sentinel://localhost/service?sentinel_no_such_option=1",
    ],
)
def test_malformed_url_is_one_line(url: str) -> None:
    with pytest.raises(StartupError, match="redis://") as caught:
        check(url)
    assert "\n" not in caught.value.message
    with pytest.raises(StartupError, match="redis://"):
        RedisBus(url, "p", presence("L", "lead"))


def test_late_server_stays_empty() -> None:
    """Closing while connecting leaves no thread behind that announces itself later."""
    server = Server()
    member = Member(server.url, "L", "lead").start()
    member.bus.close()
    try:
        server.start()
        eventually(lambda: not [t for t in threading.enumerate() if t.name.startswith("duo-bus")])
    finally:
        server.remove()


async def test_lost_log_is_not_taken(server: Server, monkeypatch: pytest.MonkeyPatch):
    """Its readers know more than Redis."""
    monkeypatch.setattr(log_writing, "RENEWED_S", 0.02)
    monkeypatch.setattr(redis_link, "PATIENCE_S", 0.0)
    monkeypatch.setattr(redis_link, "PROBE_S", 0.01)
    monkeypatch.setattr(redis_store, "LEASES_RENEWED_S", 60.0)
    async with lead(server.url, "a") as first:
        log = first.begin_log(ANNA, "resp_1", RECIPE)
        log.append(event(0))
        await first.flush()
        with redis.Redis.from_url(server.url) as client:
            assert client.hlen(first._names.open("toy")) == 1  # pyright: ignore[reportPrivateUsage]
            kept = client.dump(first._names.open("toy")) or b""  # pyright: ignore[reportPrivateUsage]
        server.kill()
        log.append(event(1))

        async def is_lost() -> bool:
            return log.lost

        await until(is_lost)
        assert await anext(log.events(0)) == event(UNSTORED + 1)
        key = first._names.open("toy")  # pyright: ignore[reportPrivateUsage]
        with redis.Redis.from_url(server.url) as client:
            with frozen(first):
                server.start()
                client.restore(key, 60_000, kept)  # as from a disk

            async def is_withdrawn() -> bool:
                return not client.exists(key)

            await until(is_withdrawn)
