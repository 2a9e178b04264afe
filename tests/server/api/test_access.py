"""API keys: who is let in, and who shares what is cached."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from starlette.types import Receive, Scope, Send

from server.api.access import Access, Caller
from server.api.app import create_app
from server.api.middleware import Edge
from server.errors import AccessError
from server.lead.listening import ClientPolicy
from tests.contract.contract import CONTRACT, validate
from tests.contract.witness import witnessed
from tests.fake_backend import FakeBackend, FakeModel
from tests.http_lead import Lead, serving
from tests.server.api import slots_scene

ANNA, BERT = "sk-anna", "sk-bert"
PROMPT = "a long beginning that two conversations have in common, word for word, " * 2
BODY: dict[str, Any] = {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": 8}
PUBLIC = ["/health", "/ready", "/", "/openapi.yaml", "/web/chat.js", "/web/chat.css"]


@contextmanager
def with_keys() -> Generator[Lead]:
    door = ClientPolicy(Edge(access=Access([ANNA, BERT]), cors_origins=("http://elsewhere",)), None, 0)
    with serving(FakeBackend(FakeModel(seed=3, eog_rate=0.0), n_seqs=24), door=door, n_slots=8) as lead:
        yield lead


@pytest.fixture(scope="module")
def locked() -> Iterator[Lead]:
    with with_keys() as lead:
        yield lead


@pytest.fixture
def empty() -> Iterator[Lead]:
    """Yield an equal lead with an empty cache."""
    with with_keys() as lead:
        yield lead


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def post(lead: Lead, path: str, key: str, body: dict[str, Any]) -> dict[str, Any]:
    response = httpx.post(lead.url + path, json=body, headers=bearer(key), timeout=20)
    assert response.status_code == 200, response.text
    lead.until_idle()
    return response.json()


def n_cached(reply: dict[str, Any]) -> int:
    return reply["usage"]["prompt_tokens_details"]["cached_tokens"]


@pytest.mark.parametrize(
    "headers",
    [bearer(ANNA), bearer(BERT), {"Authorization": f"bearer  {ANNA}"}, {"x-api-key": BERT}],
    ids=["first", "second", "lower case", "x-api-key"],
)
def test_a_key_lets_in(locked: Lead, headers: dict[str, str]):
    assert httpx.get(f"{locked.url}/v1/models", headers=headers).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer"},
        bearer("sk-ann"),
        bearer(ANNA + "x"),
        bearer(f"{ANNA},{BERT}"),
        {"Authorization": f"Basic {ANNA}"},
        {"Authorization": ANNA},
        {"x-api-key": "none"},
    ],
    ids=["none", "empty", "beginning", "longer", "both", "basic", "bare", "other header"],
)
@pytest.mark.parametrize("path", ["/v1/models", "/metrics", "/slots", "/no/such/route", "/health/", "/webs"])
def test_everybody_else_gets_a_401(locked: Lead, path: str, headers: dict[str, str]):
    response = httpx.get(locked.url + path, headers={"Origin": "http://elsewhere", **headers})
    assert response.status_code == 401
    validate("Error", response.json())
    assert response.json()["error"]["code"] == "invalid_api_key"
    assert response.json()["error"]["type"] == "authentication_error"
    assert response.headers["www-authenticate"] == "Bearer"
    assert response.headers["x-request-id"]
    assert response.headers["access-control-allow-origin"] == "http://elsewhere"
    assert ANNA not in response.text


def test_openais_client_names_the_error(locked: Lead):
    with openai.OpenAI(base_url=f"{locked.url}/v1", api_key="wrong", max_retries=0) as client:
        with pytest.raises(openai.AuthenticationError) as raised:
            client.chat.completions.create(model="default", messages=[{"role": "user", "content": "hi"}])
    assert raised.value.code == "invalid_api_key"


@pytest.mark.parametrize("path", PUBLIC)
def test_public_routes_need_no_key(locked: Lead, path: str):
    assert httpx.get(locked.url + path).status_code == 200


def test_a_preflight_needs_no_key(locked: Lead):
    headers = {
        "Origin": "http://elsewhere",
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization, content-type",
    }
    response = httpx.options(f"{locked.url}/v1/chat/completions", headers=headers)
    assert response.status_code == 200
    assert "authorization" in response.headers["access-control-allow-headers"]


def test_without_keys_any_is_accepted(lead: Lead):
    for headers in ({}, bearer("none"), {"x-api-key": "whatever"}):
        assert httpx.get(f"{lead.url}/v1/models", headers=headers).status_code == 200


def test_only_equal_keys_share_caches(empty: Lead):
    assert n_cached(post(empty, "/v1/chat/completions", ANNA, BODY)) == 0
    assert n_cached(post(empty, "/v1/chat/completions", BERT, BODY)) == 0
    assert n_cached(post(empty, "/v1/chat/completions", ANNA, BODY)) > len(PROMPT)
    salted = {**BODY, "cache_salt": "only us"}
    assert n_cached(post(empty, "/v1/chat/completions", ANNA, salted)) == 0
    assert n_cached(post(empty, "/v1/chat/completions", BERT, salted)) == 0
    assert n_cached(post(empty, "/v1/chat/completions", BERT, salted)) > len(PROMPT)


def test_nobody_takes_anothers_salt_by_naming_it(empty: Lead):
    post(empty, "/v1/chat/completions", ANNA, BODY)
    [anna] = Access([ANNA]).callers
    assert n_cached(post(empty, "/v1/chat/completions", BERT, {**BODY, "cache_salt": anna.salt()})) == 0


def test_invalid_salt_is_refused_despite_key(locked: Lead):
    for salt in (5, "x" * 257):
        body = {**BODY, "cache_salt": salt}
        response = httpx.post(f"{locked.url}/v1/chat/completions", json=body, headers=bearer(ANNA))
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "cache_salt"


def test_precomputed_text_belongs_to_its_key(empty: Lead):
    assert post(empty, "/v1/precompute", ANNA, BODY)["completed"]
    assert n_cached(post(empty, "/v1/chat/completions", BERT, BODY)) == 0
    assert n_cached(post(empty, "/v1/chat/completions", ANNA, BODY)) > len(PROMPT)


def asking(path: str) -> dict[str, Any]:
    """Return a body for a route that generates."""
    if "messages" in fields(path):
        return BODY
    if "input" in fields(path):
        return {"input": PROMPT, "max_output_tokens": 16}
    return {"prompt": PROMPT, "max_tokens": 8}


def fields(path: str) -> set[str]:
    schema = CONTRACT["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    return set(CONTRACT["components"]["schemas"][schema["$ref"].split("/")[-1]]["properties"])


def generating() -> list[str]:
    """Return the contract's routes that report how many prompt tokens were cached."""
    known = ("/v1/chat/completions", "/v1/completions", "/v1/responses")
    return [path for path in known if path in CONTRACT["paths"]]


def cached_of(reply: dict[str, Any]) -> int:
    usage = reply["usage"]
    return (usage.get("prompt_tokens_details") or usage["input_tokens_details"])["cached_tokens"]


@pytest.mark.parametrize("path", generating())
def test_every_route_that_generates_keeps_keys_apart(empty: Lead, path: str):
    body = asking(path)
    assert cached_of(post(empty, path, ANNA, body)) == 0
    assert cached_of(post(empty, path, BERT, body)) == 0
    assert cached_of(post(empty, path, ANNA, body)) >= len(PROMPT) - 1


def test_access_alone():
    access = Access(["a", "ä", "a"])
    anna, umlaut = access.callers
    assert access.admit([b"a"]) == anna
    assert access.admit([b"wrong", "ä".encode()]) == umlaut
    assert access.callers == Access(["a", "ä"]).callers, "the same after a restart"
    with pytest.raises(AccessError):
        access.admit([])
    assert Access().admit([b"whatever"]) == Caller()
    assert Caller().salt("mine") == "mine"
    salts = {caller.salt(salt) for caller in (anna, umlaut) for salt in ("", "x")}
    assert len(salts) == 4
    assert not any(part in salt for salt in salts for part in ("a:", "ä"))


async def test_slot_files_belong_to_their_key(tmp_path: Path):
    async with slots_scene.serving(tmp_path) as server:
        app = witnessed(create_app(server.state, Edge(access=Access([ANNA, BERT]))))

        async def with_state(scope: Scope, receive: Receive, send: Send) -> None:
            await app({**scope, "state": {"services": server.state}}, receive, send)

        transport = httpx.ASGITransport(app=with_state)
        async with httpx.AsyncClient(transport=transport, base_url="http://duo", timeout=20) as http:
            asked = await http.post("/v1/chat/completions", json=BODY, headers=bearer(ANNA))
            assert asked.status_code == 200
            await server.until_idle()
            [id] = [slot.id for slot in await server.thread.ask(lambda e: e.slots.list()) if slot.n_past]
            for key, action, status in (
                (BERT, "save", 400),
                (ANNA, "save", 200),
                (BERT, "restore", 404),  # not even that there is such a file
                (ANNA, "restore", 200),
            ):
                url = f"/slots/{id}?action={action}"
                response = await http.post(url, json={"filename": "kept"}, headers=bearer(key))
                assert response.status_code == status, response.text


def test_every_key_is_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch):
    """Counted rather than timed: every key takes as many comparisons of digests."""
    compared: list[tuple[bytes, bytes]] = []

    def counted(one: bytes, other: bytes) -> bool:
        compared.append((one, other))
        return one == other

    access = Access([ANNA, BERT])
    monkeypatch.setattr("server.api.access.hmac.compare_digest", counted)
    for offered in (ANNA, BERT, "sk-ann", "", ANNA * 1000):
        with suppress(AccessError):
            access.admit([offered.encode()])
        assert [len(one) for pair in compared for one in pair] == [32] * 4
        compared.clear()


def test_handles_belong_to_their_key(locked: Lead):
    def call(key: str, method: str, **params: Any) -> dict[str, Any]:
        asked = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        return httpx.post(f"{locked.url}/rpc", json=asked, headers=bearer(key), timeout=20).json()

    begun = call(ANNA, "async_completion_init", prompt="x", n_predict=4)["result"]
    for method in ("async_completion_poll", "async_completion_cancel"):
        assert call(BERT, method, handle=begun["handle"])["error"]["code"] == -32002
    assert call(ANNA, "async_completion_cancel", handle=begun["handle"])["result"] == {"cancelled": True}
    locked.until_idle()
