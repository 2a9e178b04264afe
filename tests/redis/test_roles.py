"""deploy/redis/users.acl: what each role may do, and by what it is kept from the rest."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
import redis
from members import Server, eventually, presence
from redis.exceptions import NoPermissionError

from server.errors import StartupError
from server.replies.kept import StoredResponse
from server.replies.redis_store import LeadGroup, RedisStore
from server.replies.store import Owner
from server.speculation.wire.bus import Listener
from server.speculation.wire.messages import Close, Want
from server.speculation.wire.presence import Role
from server.speculation.wire.redis_client import check
from server.speculation.wire.streams import RedisBus
from tests.server.replies.reading import event

ROLES = (Path(__file__).parents[2] / "deploy" / "redis" / "users.acl").read_text()


class Heard(Listener):
    def __init__(self) -> None:
        self.ids: list[str] = []
        self.messages: list[Any] = []

    def received(self, message: Any) -> None:
        self.messages.append(message)

    def peers(self, present: Any) -> None:
        self.ids = [one.id for one in present]


@pytest.fixture
def guarded(tmp_path: Path) -> Generator[Server]:
    """Yield a server with the roles of the pool "default"."""
    users = tmp_path / "users.acl"
    users.write_text(ROLES.replace("LEAD_PASSWORD", "one").replace("DRAFTER_PASSWORD", "two"))
    server = Server("--aclfile", str(users))
    try:
        server.start()
        yield server
    finally:
        server.remove()


def url_of(server: Server, user: str) -> str:
    password = {"lead": "one", "drafter": "two"}[user]
    return f"unix://{user}:{password}@{server.socket}"


def test_lead_and_drafter_talk(guarded: Server):
    heard: dict[str, Heard] = {"lead": Heard(), "drafter": Heard()}
    roles: dict[str, Role] = {"lead": "lead", "drafter": "drafter"}
    buses = {name: RedisBus(url_of(guarded, name), "default", presence(name, roles[name])) for name in roles}
    try:
        for name, bus in buses.items():
            check(url_of(guarded, name), "default", f"{name}:check")
            bus.start(heard[name])
        eventually(lambda: heard["lead"].ids == ["drafter"] and heard["drafter"].ids == ["lead"])
        buses["lead"].send("drafter", Close("lead", 7, keep=True))
        buses["drafter"].send("lead", Close("drafter", 8, keep=True))
        eventually(lambda: heard["lead"].messages and heard["drafter"].messages)
        assert (heard["drafter"].messages, heard["lead"].messages) == (
            [Close("lead", 7, keep=True)],
            [Close("drafter", 8, keep=True)],
        )
        buses["drafter"].close()
        eventually(lambda: heard["lead"].ids == [])
    finally:
        for bus in buses.values():
            bus.close()


async def test_lead_stores_replies(guarded: Server):
    store = RedisStore(url_of(guarded, "lead"), "default", group=LeadGroup("toy", "a"))
    owner = Owner("salt", "anna")
    try:
        left = store.begin_log(owner, "resp_2", {})
        left.append(event(0))
        await store.flush()
        store.leave("salt", "resp_2")
        await store.flush()
        assert [orphan.id for orphan in await store.take_up(1)] == ["resp_2"]
        log = store.begin_log(owner, "resp_1")
        log.append(event(0))
        store.put(owner, StoredResponse({"id": "resp_1", "output": [{"id": "msg_1"}]}, [], []))
        await store.cancel("salt", "resp_1")
        log.end()
        assert await store.change(owner, "resp_1", lambda one: one)
        assert await store.item("salt", "msg_1")
        assert await store.entries("salt", "resp_1", "-")
        assert not log.lost
        assert await store.delete(owner, "resp_1")
    finally:
        await store.close()


FORBIDDEN = {
    "a drafter reads a reply": ("drafter", "GET duo:{default}:reply:a:resp_1"),
    "a drafter reads the log of a reply": ("drafter", "XRANGE duo:{default}:reply:a:resp_1:log - +"),
    "a drafter cancels a reply": ("drafter", "SET duo:{default}:reply:a:resp_1:writer x"),
    "a drafter reads what leads are told": ("drafter", "XREAD STREAMS duo:{default}:lead:a 0"),
    "a drafter empties the inbox of a lead": ("drafter", "XTRIM duo:{default}:lead:a MAXLEN 0"),
    "a drafter deletes the inbox of a lead": ("drafter", "DEL duo:{default}:lead:a"),
    "a drafter poses as a lead": ("drafter", "SET duo:{default}:member:lead:a {}"),
    "a lead reads what drafters are told": ("lead", "XREAD STREAMS duo:{default}:drafter:a 0"),
    "a lead poses as a drafter": ("lead", "SET duo:{default}:member:drafter:a {}"),
}
EVERYBODY = {
    "reads another pool": "XREAD STREAMS duo:{other}:drafter:a 0",
    "writes to another pool": "XADD duo:{other}:lead:a * m x",
    "lists keys": "KEYS *",
    "empties the server": "FLUSHALL",
    "reads the configuration": "CONFIG GET *",
    "changes users": "ACL SETUSER eve on",
    "runs a script": "EVAL return_1 0",
    "watches others": "CLIENT LIST",
}
BOTH = {f"a {role} {what}": (role, line) for role in ("lead", "drafter") for what, line in EVERYBODY.items()}


@pytest.mark.parametrize("what", FORBIDDEN | BOTH)
def test_roles_have_only_needed_rights(guarded: Server, what: str):
    role, line = (FORBIDDEN | BOTH)[what]
    with redis.Redis.from_url(url_of(guarded, role)) as client:
        with pytest.raises(NoPermissionError):
            client.execute_command(*line.split())


ONE_DRAFTER = {
    "reads what another drafter is told": "XREAD STREAMS duo:{default}:drafter:tower-1-ab12 0",
    "empties the inbox of another drafter": "XTRIM duo:{default}:drafter:tower-1-ab12 MAXLEN 0",
    "tells another drafter what a lead would": "XADD duo:{default}:drafter:tower-1-ab12 * m x",
    "poses as another drafter": "SET duo:{default}:member:drafter:tower-1-ab12 {}",
    "poses as a lead": "SET duo:{default}:member:lead:a {}",
    "reads what leads are told": "XREAD STREAMS duo:{default}:lead:a 0",
}


@pytest.fixture(scope="module")
def apart(tmp_path_factory: pytest.TempPathFactory) -> Generator[Server]:
    """Yield a server with a user for the drafter "laptop", as in docs/deploy.md."""
    users = tmp_path_factory.mktemp("roles") / "users.acl"
    default, lead, drafter = ROLES.splitlines()
    own = drafter.replace(":drafter:*", ":drafter:laptop-*").replace("DRAFTER_PASSWORD", "two")
    users.write_text("\n".join([default, lead.replace("LEAD_PASSWORD", "one"), own]))
    server = Server("--aclfile", str(users))
    try:
        server.start()
        yield server
    finally:
        server.remove()


@pytest.mark.parametrize("what", ONE_DRAFTER)
def test_own_user_sees_own_sessions(apart: Server, what: str):
    with redis.Redis.from_url(url_of(apart, "drafter")) as client:
        with pytest.raises(NoPermissionError):
            client.execute_command(*ONE_DRAFTER[what].split())


def test_own_user_hears_and_speaks(apart: Server):
    heard = {"lead": Heard(), "laptop-1-ab12": Heard()}
    roles: dict[str, Role] = {"lead": "lead", "laptop-1-ab12": "drafter"}
    buses = {id: RedisBus(url_of(apart, role), "default", presence(id, role)) for id, role in roles.items()}
    try:
        for id, bus in buses.items():
            bus.start(heard[id])
        eventually(lambda: heard["lead"].ids == ["laptop-1-ab12"] and heard["laptop-1-ab12"].ids == ["lead"])
        buses["lead"].send("laptop-1-ab12", Close("lead", 7, keep=True))
        buses["laptop-1-ab12"].send("lead", Want("laptop-1-ab12", 8, 0))
        eventually(lambda: heard["lead"].messages and heard["laptop-1-ab12"].messages)
    finally:
        for bus in buses.values():
            bus.close()


def test_nobody_comes_in_without_a_role(guarded: Server):
    with pytest.raises(StartupError, match="wants a user or password"):
        check(guarded.url)


def test_other_pools_user_is_refused(guarded: Server):
    with pytest.raises(StartupError, match=r"the keys duo:\{other\}"):
        check(url_of(guarded, "lead"), "other")
