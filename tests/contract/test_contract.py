"""openapi.yaml and the app say the same, in both directions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.routing import Mount, Route

from server.api.app import routes
from server.api.contract.__main__ import text
from server.errors import DuoError
from tests.contract.contract import CONTRACT, validate
from tests.contract.operations import Operation, operations
from tests.http_lead import Lead

OWN = {("POST", "/completions"), ("GET", "/health")}
"""Routes without /v1 that are listed, too: others, or what may be asked without a key."""


def test_the_contract_is_that_of_the_code():
    """Run make openapi after a change."""
    assert (Path(__file__).parents[2] / "openapi.yaml").read_text() == text()


def served_routes() -> set[tuple[str, str]]:
    """Return (method, path) of the app without HEAD and without the mirror outside /v1, which is checked."""
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
    mirrored -= OWN
    return found | (bare - mirrored)


def test_contract_lists_exactly_the_routes():
    listed = {(method.upper(), path) for path, item in CONTRACT["paths"].items() for method in item}
    assert listed == served_routes()


PAGE = {"/", "/status", "/lend", "/openapi.yaml"}
PUBLIC = {*PAGE, "/health", "/v1/health", "/ready"}
WITHOUT_CONTENT = ("DELETE /v1/stream", "DELETE /v1/stream/{conv_id}")
RPC = "POST /rpc"
"""Tells what is wrong with a call in its reply."""


@pytest.mark.parametrize("operation", list(operations()), ids=lambda operation: operation.name)
def test_operations_list_all_their_answers(operation: Operation):
    """Answers include a missing key, a loading model, a defect, and a malformed, late or large body."""
    listed = set(operation.item["responses"])
    expected = {"204" if operation.name in WITHOUT_CONTENT else "200"}
    if operation.path not in PAGE:
        expected |= {"500", "503"}
    if operation.path not in PUBLIC:
        expected |= {"401"}
    if "requestBody" in operation.item:
        expected |= {"408", "413", "415"}
        if operation.name != RPC:
            expected |= {"400"}
    assert expected <= listed
    assert (operation.item.get("security") == []) == (operation.path in PUBLIC)


def test_contract_has_every_error_status():
    def kinds(error: type[DuoError]) -> Iterator[type[DuoError]]:
        yield error
        for kind in error.__subclasses__():
            yield from kinds(kind)

    listed = {status for operation in operations() for status in operation.item["responses"]}
    known = {str(kind.status) for kind in kinds(DuoError) if kind.__module__.startswith("server.")}
    assert known <= listed


def test_metrics_are_those_of_the_contract(lead: Lead):
    httpx.post(f"{lead.url}/v1/chat/completions", json={"messages": [{"role": "user", "content": "hi"}]})
    content = CONTRACT["paths"]["/metrics"]["get"]["responses"]["200"]["content"]["text/plain"]
    response = httpx.get(f"{lead.url}/metrics")
    assert response.headers["content-type"].startswith("text/plain")
    families = list(text_string_to_metric_families(response.text))
    assert {family.name: family.type for family in families} == {
        name: listed["type"] for name, listed in content["x-metrics"].items()
    }
    for family in families:
        assert family.documentation
        for sample in family.samples:
            assert sorted(sample.labels) == content["x-metrics"][family.name].get("labels", [])


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
    assert httpx.get(f"{lead.url}/openapi.yaml").text.partition("\n")[2].startswith("openapi: 3.1")


def test_page_and_its_files_load(lead: Lead):
    page = httpx.get(f"{lead.url}/")
    assert page.headers["content-type"].startswith("text/html")
    for path in ("/web/chat.js", "/web/chat.css"):
        assert path in page.text
        assert httpx.get(lead.url + path).status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "status"), [("GET", "/nowhere", 404), ("GET", "/v1/chat/completions", 405)]
)
def test_unknown_routes_share_error_form(lead: Lead, method: str, path: str, status: int):
    response = httpx.request(method, lead.url + path)
    assert response.status_code == status
    validate("Error", response.json())
