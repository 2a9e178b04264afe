"""What a browser that drafts gets: the model's file, and a socket to a drafter of its own."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import socket
import ssl
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect
from websockets.typing import Subprotocol

from server.api.access import Access
from server.api.lend_route import FULL, POLICY
from server.api.lending import BrowserLender, Lending, named
from server.api.middleware import Edge
from server.lead.listening import MAX_SOCKET_MESSAGE, ClientPolicy, Tls
from tests.fake_backend import FakeBackend, FakeModel
from tests.http_lead import Lead, serving
from tests.server.lead.test_listening import self_signed
from tests.support import until

ANNA, BERT = "sk-anna", "sk-bért"
ECHO = "import sys\nfor line in sys.stdin: print('echo ' + line, end='', flush=True)"
LEAVES = "print('bye', flush=True)"


class Scene:
    """A lead whose browsers get a script in a drafter's place."""

    def __init__(self, model: Path, script: str) -> None:
        self.script = script
        self.lenders: list[BrowserLender] = []
        self.processes: list[Process] = []
        self.lending = Lending(model, self._start, most=2)

    async def _start(self, lender: BrowserLender) -> Process:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", self.script, stdin=PIPE, stdout=PIPE
        )
        self.lenders.append(lender)
        self.processes.append(process)
        return process

    def until_nobody_lends(self) -> None:
        until(lambda: not self.lending.n_now, "a browser still lends")
        assert all(process.returncode is not None for process in self.processes)


@contextmanager
def lending(
    tmp_path: Path, script: str = ECHO, keys: tuple[str, ...] = (), tls: Tls | None = None
) -> Generator[tuple[Lead, Scene]]:
    model = tmp_path / "a draft.gguf"
    model.write_bytes(b"GGUF" + bytes(range(256)))
    scene = Scene(model, script)
    door = ClientPolicy(Edge(access=Access(keys), local=not keys), tls, 0)
    with serving(FakeBackend(FakeModel()), door=door, lending=scene.lending) as lead:
        yield lead, scene
        scene.until_nobody_lends()


@pytest.fixture
def echoing(tmp_path: Path) -> Iterator[tuple[Lead, Scene]]:
    with lending(tmp_path) as both:
        yield both


@contextmanager
def joined(lead: Lead, *, key: str = "", name: str = "tablet", **more: Any) -> Generator[ClientConnection]:
    coded = base64.urlsafe_b64encode(key.encode()).decode().rstrip("=")
    protocols = [Subprotocol("duo-lend")] + [Subprotocol(f"duo-key.{coded}")] * bool(key)
    url = f"{lead.url.replace('http', 'ws', 1)}/lend/socket?name={name}"
    dial = cast(Callable[..., ClientConnection], connect)
    with dial(url, subprotocols=protocols, **more) as browser:
        yield browser


def status_without(lead: Lead, **more: Any) -> int:
    with pytest.raises(InvalidStatus) as refused, joined(lead, **more):
        pass
    return refused.value.response.status_code


def test_messages_go_both_ways(echoing: tuple[Lead, Scene]):
    lead, scene = echoing
    with joined(lead, name="my%20tablet%1b") as browser:
        assert browser.subprotocol == "duo-lend"
        for text in ("one", "two"):
            browser.send(text)
            assert browser.recv() == f"echo {text}"
    assert scene.lenders == [BrowserLender("my-tablet", "", False)]


def test_file_comes_with_its_hash(echoing: tuple[Lead, Scene]):
    lead, scene = echoing
    data = scene.lending.model.read_bytes()
    got = httpx.get(f"{lead.url}/lend/model")
    assert got.content == data
    assert got.headers["etag"] == f'"{hashlib.sha256(data).hexdigest()}"'
    assert got.headers["x-file-name"] == "a%20draft.gguf"
    part = httpx.get(f"{lead.url}/lend/model", headers={"range": "bytes=4-7"})
    assert (part.status_code, part.content) == (206, data[4:8])
    head = httpx.head(f"{lead.url}/lend/model")
    assert (head.headers["content-length"], head.content) == (str(len(data)), b"")


def test_full_server_says_so(echoing: tuple[Lead, Scene]):
    lead, _ = echoing
    with joined(lead) as one, joined(lead) as two, joined(lead) as three:
        with pytest.raises(ConnectionClosed) as closed:
            three.recv()
        assert closed.value.rcvd is not None
        assert (closed.value.rcvd.code, closed.value.rcvd.reason[:10]) == (FULL, "2 browsers")
        for browser in (one, two):
            browser.send("still")
            assert browser.recv() == "echo still"


def test_a_vanished_browser_ends_its_drafter(echoing: tuple[Lead, Scene]):
    lead, scene = echoing
    with joined(lead) as browser:
        browser.send("one")
        browser.recv()
        browser.socket.shutdown(2)
    scene.until_nobody_lends()


def test_an_ended_drafter_closes_the_socket(tmp_path: Path):
    with lending(tmp_path, LEAVES) as (lead, _), joined(lead) as browser:
        assert browser.recv() == "bye"
        with pytest.raises(ConnectionClosed, match="its drafter has ended"):
            browser.recv()


def test_floods_and_long_messages_end(echoing: tuple[Lead, Scene]):
    lead, scene = echoing
    scene.lending.per_second = 5
    with joined(lead) as browser:
        flood = (browser.send("x") for _ in range(100_000))
        with pytest.raises(ConnectionClosed) as closed:
            list(flood)
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == POLICY
    scene.until_nobody_lends()
    with joined(lead) as browser:
        browser.send("x" * (MAX_SOCKET_MESSAGE + 1))
        with pytest.raises(ConnectionClosed):
            browser.recv()


def test_bytes_are_no_message(echoing: tuple[Lead, Scene]):
    lead, _ = echoing
    with joined(lead) as browser:
        browser.send(b"one")
        with pytest.raises(ConnectionClosed):
            browser.recv()


def test_only_keys_open_it(tmp_path: Path):
    with lending(tmp_path, keys=(ANNA, BERT)) as (lead, scene):
        for key in ("", "sk-other"):
            assert status_without(lead, key=key) == 403
            assert httpx.get(f"{lead.url}/lend/model", headers={"x-api-key": key}).status_code == 401
        for key in (ANNA, BERT):
            with joined(lead, key=key) as browser:
                browser.send("one")
                assert browser.recv() == "echo one"
        salts = [caller.salt() for caller in Access((ANNA, BERT)).callers]
        assert [lender.salt for lender in scene.lenders] == salts
        assert len(set(salts)) == 2


def test_all_of_it_goes_over_tls(tmp_path: Path):
    tls, trusting = self_signed(tmp_path)
    with lending(tmp_path, keys=(ANNA,), tls=tls) as (lead, scene):
        with joined(lead, key=ANNA, ssl=trusting) as browser:
            browser.send("one")
            assert browser.recv() == "echo one"
        with (
            pytest.raises(ssl.SSLCertVerificationError),
            joined(lead, key=ANNA, ssl=ssl.create_default_context()),
        ):
            pass
        with httpx.Client(verify=trusting, headers={"x-api-key": ANNA}) as client:
            assert client.get(f"{lead.url}/lend/model").content == scene.lending.model.read_bytes()
            link = client.get(f"{lead.url}/lend/link", params={"origin": "https://desk.example"}).json()[
                "url"
            ]
        assert link == "https://desk.example/lend"


def test_foreign_pages_may_not_lend(echoing: tuple[Lead, Scene]):
    lead, scene = echoing
    assert status_without(lead, origin="http://elsewhere.example") == 403
    port = int(lead.url.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port)) as rebound, pytest.raises(InvalidStatus):
        connect(f"ws://rebound.example:{port}/lend/socket", sock=rebound)
    assert scene.lenders == []
    with joined(lead, origin=lead.url) as browser:
        browser.send("one")
        assert browser.recv() == "echo one"


def test_other_paths_have_no_socket(echoing: tuple[Lead, Scene]):
    lead, _ = echoing
    for path in ("/", "/lend", "/web/chat.js", "/v1/models", "/nowhere"):
        with pytest.raises(InvalidStatus), connect(f"{lead.url.replace('http', 'ws', 1)}{path}"):
            pass


def test_without_redis_nobody_lends():
    with serving(FakeBackend(FakeModel())) as lead:
        assert status_without(lead) == 403
        refused = httpx.get(f"{lead.url}/lend/model")
        assert refused.status_code == 501
        assert "duo up" in refused.json()["error"]["message"]


def test_hidden_page_lends_nothing(tmp_path: Path):
    scene = Scene(tmp_path / "none.gguf", ECHO)
    with serving(FakeBackend(FakeModel()), lending=scene.lending, hidden=frozenset({"ui"})) as lead:
        assert httpx.get(f"{lead.url}/lend").status_code == 404
        assert status_without(lead) == 403


@pytest.mark.parametrize(
    ("text", "name"),
    [("iPad", "iPad"), ("a b\n\x1b[2J", "a-b-2J"), ("", "browser"), ("--x", "x"), ("é" * 99, "é" * 32)],
)
def test_names_are_plain(text: str, name: str):
    assert named(text) == name
