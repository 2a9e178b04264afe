"""A real server for these tests, emptied after each; a test that leaves a key without a TTL fails."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator
from typing import TypeAlias

import pytest
import redis
from members import Member, Server, keys

from server.local.embedded import EmbeddedServer
from server.speculation.wire.presence import Role

Join: TypeAlias = Callable[[str, Role], Member]


@pytest.fixture(scope="session")
def shared_server() -> Generator[EmbeddedServer]:
    with EmbeddedServer() as server:
        yield server


@pytest.fixture
def client(shared_server: EmbeddedServer) -> Generator[redis.Redis]:
    """Yield a plain client, to look at what the bus does and to do what a bus would not."""
    with redis.Redis.from_url(shared_server.url) as client:
        yield client
        assert [key for key in keys(client) if client.ttl(key) == -1] == [], "keys without a TTL"
        client.flushall()


@pytest.fixture
def url(shared_server: EmbeddedServer, client: redis.Redis) -> str:
    return shared_server.url


@pytest.fixture
def join(url: str) -> Generator[Join]:
    """Put a member on the shared server; all are closed after the test, before the keys are looked at."""
    with contextlib.ExitStack() as ending:

        def join(id: str, role: Role) -> Member:
            member = Member(url, id, role)
            ending.callback(member.bus.close)
            return member.start()

        yield join


@pytest.fixture
def server() -> Generator[Server]:
    """Yield a running server of the test's own, to be killed."""
    server = Server()
    try:
        server.start()
        yield server
    finally:
        server.remove()
