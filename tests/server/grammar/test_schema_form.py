"""Whether a schema is one: what is not is refused by its place, whether or not the compiler would notice."""

from __future__ import annotations

import json
from typing import Any

import pytest

from server.grammar.json_schema import Allowance
from tests.server.grammar.test_grammar_constraint import accepts, refusal
from tests.server.grammar.test_json_schema import start

MALFORMED: list[tuple[dict[str, Any], str]] = [
    ({"properties": 5}, "properties"),
    ({"properties": {"a": 5}}, "properties.a"),
    ({"properties": {"a": None}}, "properties.a"),
    ({"required": 5}, "required"),
    ({"required": [5]}, "required"),
    ({"enum": 5}, "enum"),
    ({"anyOf": {}}, "anyOf"),
    ({"oneOf": [{}, "string"]}, "oneOf.1"),
    ({"allOf": 5}, "allOf"),
    ({"$defs": []}, "$defs"),
    ({"definitions": {"a": "string"}}, "definitions.a"),
    ({"items": 3}, "items"),
    ({"items": [3]}, "items.0"),
    ({"prefixItems": {}}, "prefixItems"),
    ({"additionalProperties": "no"}, "additionalProperties"),
    ({"type": 5}, "type"),
    ({"type": ["string", 5]}, "type"),
    ({"minItems": "1"}, "minItems"),
    ({"maxItems": -1}, "maxItems"),
    ({"maxLength": 1.5}, "maxLength"),
    ({"minLength": True}, "minLength"),
    ({"minimum": "1"}, "minimum"),
    ({"pattern": 5}, "pattern"),
    ({"$ref": 5}, "$ref"),
]


@pytest.mark.parametrize(("schema", "place"), MALFORMED, ids=[json.dumps(one) for one, _ in MALFORMED])
def test_invalid_schema_names_its_place(schema: dict[str, Any], place: str):
    error = refusal(lambda: start(schema))
    assert error.param == f"json_schema.{place}"
    assert "must be" in error.message
    within = refusal(lambda: start({"type": "object", "properties": {"p": schema}, "required": ["p"]}))
    assert within.param == f"json_schema.properties.p.{place}"


def test_reference_must_lead_to_schema():
    schema = {"items": {"$ref": "#/$defs/a/x"}, "$defs": {"a": {"x": {"items": {"enum": 5}}}}}
    assert refusal(lambda: start(schema)).param == "json_schema.$defs.a.x.items.enum"


def test_empty_values_mean_nothing():
    absent = {"enum": None, "required": None, "items": None, "minItems": None, "additionalProperties": None}
    of_draft_3 = {"type": "string", "required": True, "format": None}
    schema = {"type": "object", "properties": {"a": of_draft_3}, **absent}
    assert accepts(start(schema), '{"a":"x"}')
    assert not accepts(start(schema), '{"a":1}')
    assert json.loads(Allowance().written({"const": None, "default": None}, "p")) == {
        "const": None,
        "default": None,
    }


def test_a_whole_number_may_have_a_point():
    schema = {"type": "array", "minItems": 1.0, "maxItems": 2.0}
    assert accepts(start(schema), "[1]")
    assert not accepts(start(schema), "[1,2,3]")
