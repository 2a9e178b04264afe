"""The link by which another device opens /lend: its address, its key, its QR code."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from server.api.access import Access
from server.api.lend_link import lend_link, lines_of
from server.api.lending import BrowserLender, Lending
from server.api.middleware import Edge
from server.errors import FieldError, NotSupportedError
from server.lead.listening import ClientPolicy
from tests.fake_backend import FakeBackend, FakeModel
from tests.http_lead import serving
from tests.qr_codes import codes_on_terminal

KEY = "sk-é +/#&=1"
DESK = "192.168.1.7"


@pytest.mark.parametrize(
    ("origin", "address", "link"),
    [
        ("http://localhost:5555", DESK, "http://192.168.1.7:5555/lend"),
        ("https://[::1]:5555", "fd00::7", "https://[fd00::7]:5555/lend"),
        ("http://127.0.0.2", DESK, "http://192.168.1.7/lend"),
        ("http://0.0.0.0:80", DESK, "http://192.168.1.7:80/lend"),
        ("https://desk.example:5555", DESK, "https://desk.example:5555/lend"),
        ("https://desk.example", "", "https://desk.example/lend"),
        ("http://[fd00::9]:5555", "", "http://[fd00::9]:5555/lend"),
    ],
)
def test_link_has_a_name_for_others(origin: str, address: str, link: str):
    assert lend_link(origin, address) == link


@pytest.mark.parametrize(
    "origin", ["", "javascript:alert(1)", "http://a/b", "http://a b", "http://a:5555/", "a:1"]
)
def test_only_origins_are_taken(origin: str):
    with pytest.raises(FieldError, match="origin"):
        lend_link(origin, DESK)


def test_lone_machine_says_what_to_do():
    with pytest.raises(NotSupportedError, match=r"--host 0\.0\.0\.0"):
        lend_link("http://127.0.0.1:5555", "")


@pytest.mark.parametrize(
    "link", ["http://192.168.1.7:5555/lend", f"https://{'a.' * 100}example/lend#key={'k' * 200}"]
)
def test_code_on_a_terminal_is_the_link(link: str):
    assert codes_on_terminal(lines_of(link)) == [link]


def asked(tmp_path: Path, keys: tuple[str, ...], **query: Any) -> httpx.Response:
    async def start(_: BrowserLender) -> Any: ...

    lending = Lending(tmp_path / "draft.gguf", start, address=lambda: DESK)
    door = ClientPolicy(Edge(access=Access(keys), local=not keys), None, 0)
    with serving(FakeBackend(FakeModel()), door=door, lending=lending) as lead:
        headers = [(b"authorization", f"Bearer {keys[0]}".encode())] if keys else []
        return httpx.get(
            f"{lead.url}/lend/link", params={"origin": "http://localhost:1"} | query, headers=headers
        )


def test_link_has_the_key_only_on_request(tmp_path: Path):
    for query in ({}, {"key": "false"}, {"key": ""}):
        answer = asked(tmp_path, (KEY,), **query)
        assert answer.json()["url"] == "http://192.168.1.7:1/lend"
        assert answer.headers["cache-control"] == "no-store"
    link = str(asked(tmp_path, (KEY,), key="true").json()["url"])
    assert parse_qs(urlsplit(link).fragment) == {"key": [KEY]}
    assert asked(tmp_path, (), key="true").json()["url"] == "http://192.168.1.7:1/lend"


def test_link_needs_a_key(tmp_path: Path):
    door = ClientPolicy(Edge(access=Access((KEY,))), None, 0)
    with serving(FakeBackend(FakeModel()), door=door) as lead:
        assert httpx.get(f"{lead.url}/lend/link?origin=http://a").status_code == 401
    with serving(FakeBackend(FakeModel())) as lead:
        assert httpx.get(f"{lead.url}/lend/link?origin=http://a").status_code == 501
    assert asked(tmp_path, (), origin="nowhere").status_code == 400
