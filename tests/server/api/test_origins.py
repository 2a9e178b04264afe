"""A server without keys answers programs and its own page; not every web page that somebody looks at."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from openai import OpenAI

from server.api.access import Access
from server.api.middleware import Edge
from server.lead.listening import ClientPolicy
from tests.fake_backend import FakeBackend, FakeModel
from tests.http_lead import Lead, serving

ASK = {"prompt": "a", "max_tokens": 2}
REBOUND = "evil.example:5555"  # a name whose address was this machine's when the page asked again


def door(edge: Edge) -> ClientPolicy:
    return ClientPolicy(edge, None, grace_s=0)


@pytest.fixture(scope="module")
def local() -> Iterator[Lead]:
    with serving(FakeBackend(FakeModel()), door=door(Edge(local=True))) as lead:
        yield lead


def post(lead: Lead, **headers: str) -> httpx.Response:
    return httpx.post(f"{lead.url}/v1/completions", json=ASK, headers=headers)


@pytest.mark.parametrize(
    "host", ["localhost:5555", "127.0.0.1", "[::1]:80", "host.docker.internal", "LOCALHOST"]
)
def test_names_of_this_machine_are_answered(host: str, local: Lead):
    assert post(local, Host=host).status_code == 200
    assert post(local, Host=host, Origin=f"http://{host}").status_code == 200


@pytest.mark.parametrize("host", [REBOUND, "localhost.evil.example", "127.0.0.1.evil.example", "duo", ""])
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/models", "/metrics", "/slots"])
def test_rebound_name_is_refused(host: str, path: str, local: Lead):
    response = httpx.get(f"{local.url}{path}", headers={"Host": host, "Origin": f"http://{host}"})
    assert response.status_code == 403
    error = response.json()["error"]
    assert (error["type"], error["code"]) == ("permission_error", "foreign_page")
    assert "--api-key" in error["message"]


@pytest.mark.parametrize(
    "origin", ["https://evil.example", "null", "http://localhost:3000", "http://127.0.0.1:1"]
)
def test_foreign_pages_are_refused_early(origin: str, local: Lead):
    n_before = len(local.backend.widths)
    response = post(local, Origin=origin)
    assert response.status_code == 403
    assert "--cors-origins" in response.json()["error"]["message"]
    assert len(local.backend.widths) == n_before


def test_page_and_health_allow_any_name(local: Lead):
    for path in ("/", "/health", "/openapi.yaml"):
        assert httpx.get(f"{local.url}{path}", headers={"Host": REBOUND}).status_code == 200


def test_programs_notice_nothing(local: Lead):
    with OpenAI(base_url=f"{local.url}/v1", api_key="any", max_retries=0) as client:
        assert client.completions.create(model="toy", prompt="a", max_tokens=2).choices[0].text


@pytest.mark.parametrize(
    ("origins", "origin", "status"),
    [
        (("*",), "https://chat.example", 200),
        (("https://chat.example",), "https://chat.example", 200),
        (("https://chat.example",), "https://other.example", 403),
        (("localhost",), "http://localhost:3000", 200),
        (("localhost",), "http://localhost.evil.example", 403),
    ],
)
def test_origins_that_were_named_are_let_in(origins: tuple[str, ...], origin: str, status: int):
    with serving(FakeBackend(FakeModel()), door=door(Edge(cors_origins=origins, local=True))) as lead:
        assert post(lead, Origin=origin).status_code == status


def test_with_a_key_the_key_decides():
    with serving(FakeBackend(FakeModel()), door=door(Edge(Access(["k"])))) as lead:
        headers = {"Host": REBOUND, "Origin": "https://evil.example"}
        assert post(lead, **headers).status_code == 401
        response = post(lead, **headers, Authorization="Bearer k")
        assert response.status_code == 200
        assert "access-control-allow-origin" not in response.headers
