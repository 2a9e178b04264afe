"""openapi.yaml and the app say the same, in both directions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.routing import Mount, Route

from server.api.schema import NEUTRAL, ChatMessage, ChatRequest, Speculative
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


BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "maxItems", "minItems", "minLength", "maxLength")


def bounds(schema: Mapping[str, Any]) -> set[tuple[str, float]]:
    """Every bound on a field's values, whichever of its forms it belongs to."""
    forms: list[Mapping[str, Any]] = [schema, *schema.get("anyOf", ()), *schema.get("oneOf", ())]
    items = [form["items"] for form in forms if isinstance(form.get("items"), dict)]
    return {(name, form[name]) for form in [*forms, *items] for name in BOUNDS if name in form}


@pytest.mark.parametrize("name", sorted(ChatRequest.model_fields))
def test_a_field_has_the_same_bounds_in_the_contract_and_the_code(name: str):
    listed = bounds(CONTRACT["components"]["schemas"]["ChatRequest"]["properties"][name])
    kept = bounds(ChatRequest.model_json_schema()["properties"][name])
    if name == "seed":  # checked by a validator
        kept = {("minimum", -(1 << 63)), ("maximum", (1 << 64) - 1)}
    if name == "logit_bias":  # of pairs, which the code takes apart by hand
        listed -= {("minItems", 2)}
    assert listed == kept


def test_what_is_said_about_drafts_has_the_same_fields_and_bounds():
    forms = CONTRACT["components"]["schemas"]["ChatRequest"]["properties"]["speculative"]["oneOf"]
    listed = next(form for form in forms if form["type"] == "object")["properties"]
    kept = Speculative.model_json_schema()["properties"]
    assert {name: bounds(field) for name, field in listed.items()} == {
        name: bounds(field) for name, field in kept.items()
    }


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
