"""openapi.yaml and the app say the same, in both directions."""

from __future__ import annotations

import httpx
import pytest
from starlette.routing import Mount, Route

from server.api.schema import NEUTRAL, ChatMessage, ChatRequest
from server.app import routes
from tests.contract.contract import CONTRACT, validate
from tests.http_lead import Lead


def served_routes() -> set[tuple[str, str]]:
    """(method, path) of the app, HEAD left out, the mirror without /v1 checked and left out."""
    found: set[tuple[str, str]] = set()
    bare: set[tuple[str, str]] = set()
    for route in routes():
        if isinstance(route, Route):
            path = route.path.replace(":path}", "}")
            bare |= {(method, path) for method in route.methods or () if method != "HEAD"}
        elif isinstance(route, Mount) and route.path == "/v1":
            for inner in route.routes:
                assert isinstance(inner, Route)
                path = "/v1" + inner.path.replace(":path}", "}")
                found |= {(method, path) for method in inner.methods or () if method != "HEAD"}
    mirrored = {(method, path.removeprefix("/v1")) for method, path in found}
    assert mirrored <= bare
    return found | (bare - mirrored)


def test_the_contract_lists_exactly_the_routes_that_exist():
    listed = {(method.upper(), path) for path, item in CONTRACT["paths"].items() for method in item}
    assert listed == served_routes()


def test_the_contract_lists_exactly_the_fields_that_are_read():
    schemas = CONTRACT["components"]["schemas"]
    assert set(schemas["ChatRequest"]["properties"]) == set(ChatRequest.model_fields)
    assert set(schemas["Message"]["properties"]) == set(ChatMessage.model_fields)
    for name in NEUTRAL:
        assert name in schemas["ChatRequest"]["description"], name


@pytest.mark.parametrize("prefix", ["", "/v1"])
def test_models(lead: Lead, prefix: str):
    body = httpx.get(f"{lead.url}{prefix}/models").json()
    validate("ModelList", body)
    validate("Model", httpx.get(f"{lead.url}{prefix}/models/toy").json())
    missing = httpx.get(f"{lead.url}{prefix}/models/a/b")
    assert missing.status_code == 404
    validate("Error", missing.json())


def test_health(lead: Lead):
    response = httpx.get(f"{lead.url}/health")
    assert response.status_code == 200
    validate("Health", response.json())


def test_the_contract_is_served(lead: Lead):
    assert httpx.get(f"{lead.url}/openapi.yaml").text.startswith("openapi: 3.1")


def test_the_page_and_what_it_loads_are_served(lead: Lead):
    page = httpx.get(f"{lead.url}/")
    assert page.headers["content-type"].startswith("text/html")
    for path in ("/web/chat.js", "/web/chat.css"):
        assert path in page.text
        assert httpx.get(lead.url + path).status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "status"), [("GET", "/nowhere", 404), ("GET", "/v1/chat/completions", 405)]
)
def test_unknown_routes_and_methods_are_errors_of_the_same_shape(
    lead: Lead, method: str, path: str, status: int
):
    response = httpx.request(method, lead.url + path)
    assert response.status_code == status
    validate("Error", response.json())
