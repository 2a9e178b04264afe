"""Keywords of JSON schemas that change nothing: the compiler does not know them, and clients send them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.server.grammar.test_grammar_constraint import accepts, refusal
from tests.server.grammar.test_json_schema import start

IDLE: list[dict[str, Any]] = [
    {"uniqueItems": False},
    {"minContains": 0},
    {"not": False},
    {"propertyNames": {"type": "string"}},
    {"propertyNames": {}},
    {"unevaluatedProperties": True},
    {"unevaluatedItems": {}},
    {"dependencies": {}},
    {"dependentRequired": {}, "dependentSchemas": {}},
]


@pytest.mark.parametrize("idle", IDLE, ids=json.dumps)
def test_idle_keyword_is_accepted(idle: dict[str, Any]):
    part = {"type": "object", "properties": {"x": {"type": "integer", **idle}}, **idle}
    schema = {"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": [part, {"type": "null"}]}}, **idle}
    assert accepts(start(schema), '{"x":1}')
    assert not accepts(start(schema), '{"x":"1"}')


@pytest.mark.parametrize(
    ("keyword", "value"),
    [("uniqueItems", True), ("propertyNames", {"pattern": "^a"}), ("unevaluatedProperties", False)],
)
def test_effective_keyword_is_refused(keyword: str, value: Any):
    error = refusal(lambda: start({"items": {keyword: value}}))
    assert error.param == f"json_schema.items.{keyword}"
    assert "not supported" in error.message


@pytest.mark.parametrize("format", ["password", "binary", "path", "frob", "idn-email", "uri-reference"])
def test_a_format_that_nobody_knows_is_ignored(format: str):
    assert accepts(start({"type": "string", "format": format, "maxLength": 3}), '"a b"')
    assert not accepts(start({"type": "string", "format": format, "maxLength": 3}), '"abcd"')


@pytest.mark.parametrize(
    "format",
    ["date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"],
)
def test_a_format_that_is_known_is_held(format: str):
    assert not accepts(start({"type": "string", "format": format}), '"a b"')


def test_properties_may_be_called_as_keywords_are():
    schema = {
        "type": "object",
        "properties": {"format": {"const": "x"}, "uniqueItems": {"enum": [False]}},
        "required": ["format", "uniqueItems"],
    }
    assert accepts(start(schema), '{"format":"x","uniqueItems":false}')
    assert not accepts(start(schema), '{"format":"x","uniqueItems":true}')
    assert accepts(start({"const": {"format": "frob"}}), '{"format":"frob"}')
