"""Schemas are held as far as they can be, and limits that no reply reaches are no faults."""

from __future__ import annotations

import json
from typing import Any

import pytest

from server.errors import InvalidRequestError
from server.grammar.compiler import Compiler
from server.grammar.schema_form import Schema
from tests.fake_backend import IM_END, FakeVocabulary

COMPILER = Compiler(FakeVocabulary())
SELF = {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}
LIST: dict[str, Any] = {"type": "array", "items": {"$ref": "#/$defs/x"}}
LISTS: dict[str, Any] = {"$defs": {"x": {**LIST, "minItems": 1}}, "$ref": "#/$defs/x"}
ENDING = [
    {**SELF, "required": []},
    {"anyOf": [SELF | {"properties": {"a": {"$ref": "#"}}}, {"type": "null"}]},
    {**LISTS, "$defs": {"x": LIST}},
    {"type": ["object", "string"], "properties": {"a": {"$ref": "#"}}, "required": ["a"]},
]


def takes(schema: Schema, value: Any) -> bool:
    state = COMPILER.json_schema(schema)()
    for token in [*json.dumps(value).encode(), IM_END]:
        if not state.allows(token):
            return False
        state.accept(token)
    return True


def with_members(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties)}


@pytest.mark.parametrize(
    ("part", "left_out", "right", "wrong"),
    [
        ({"type": "array", "items": {"type": "null"}, "uniqueItems": True}, ["uniqueItems"], [None], [1]),
        ({"type": "string", "not": {"const": "x"}}, ["not"], "x", 1),
        ({"type": "object", "propertyNames": {"pattern": "^a"}}, ["propertyNames"], {"b": 1}, 1),
        ({"type": "integer", "if": {"minimum": 1}, "then": {"maximum": 2}, "else": {}}, ["if"], 5, "a"),
        ({"type": "array", "contains": {"type": "integer"}, "minContains": 2}, ["contains"], [], 1),
        ({"type": "string", "pattern": "(?=a)b"}, ["pattern"], "c", 1),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, ["oneOf"], 1.5, "a"),
        ({"$ref": "#/$defs/none"}, ["$ref"], 1, None),
        ({"type": "integer", "multipleOf": 1_000_003}, ["multipleOf"], 7, "a"),
        (SELF, ["properties.a.$ref"], {"a": 1}, 1),
    ],
)  # fmt: skip
def test_the_rest_is_held(part: Schema, left_out: list[str], right: Any, wrong: Any):
    schema = with_members(kept={"type": "boolean"}, part=part)
    with pytest.raises(InvalidRequestError):
        COMPILER.json_schema(schema)
    held, places = COMPILER.enforceable(schema, "tools.0.function.parameters")
    assert places == [f"properties.part.{one}" for one in left_out]
    assert takes(held, {"kept": True, "part": right})
    assert not takes(held, {"kept": 1, "part": right})
    assert wrong is None or not takes(held, {"kept": True, "part": wrong})


def test_holdable_parts_are_held_whole():
    schema = with_members(a={"type": "integer", "minimum": 3})
    assert COMPILER.enforceable(schema, "x") == (schema, [])


def test_many_faults_are_left_out():
    parts = {f"p{i}": {"type": "array", "uniqueItems": True} for i in range(10)}
    held, places = COMPILER.enforceable(with_members(**parts), "x")
    assert places == [f"properties.p{i}.uniqueItems" for i in range(10)]
    assert takes(held, {key: [1, 1] for key in parts})


def test_too_large_a_schema_is_any_object():
    schema = with_members(a={"enum": [f"value {i}" for i in range(9000)]})
    assert COMPILER.enforceable(schema, "x") == ({"type": "object"}, [""])


def test_non_schema_is_refused():
    with pytest.raises(InvalidRequestError) as caught:
        COMPILER.enforceable({"properties": 1}, "tools.0.function.parameters")
    assert caught.value.param == "tools.0.function.parameters.properties"


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        *(({"type": "string", "maxLength": n}, "a") for n in (2**31, 2**32, 2**53 - 1, 2**64)),
        ({"type": "array", "maxItems": 2**53 - 1}, [1]),
        *(({"type": "integer", "minimum": -n, "maximum": n}, 5) for n in (2**53 - 1, 2**63 - 1, 2**64)),
        ({"type": "integer", "exclusiveMinimum": -(2**63), "exclusiveMaximum": 2**63}, -5),
        *(({"type": "number", "minimum": -n, "maximum": n}, 1.5) for n in (3.4e38, 1.7976931348623157e308)),
        ({"type": "number", "minimum": 2.2250738585072014e-308}, 1.5),
    ],
)  # fmt: skip
def test_limits_that_no_reply_reaches_are_taken(schema: Schema, value: Any):
    assert takes(schema, value)
    assert takes(with_members(a=schema), {"a": value})


def test_other_limits_hold():
    assert not takes({"type": "string", "maxLength": 2}, "abc")
    assert not takes({"type": "integer", "maximum": 2**62}, 2**63)
    assert not takes({"type": "number", "minimum": 1e-20}, 0)


WITHIN = {**with_members(a=LISTS["$defs"]["x"]), "$defs": LISTS["$defs"]}


@pytest.mark.parametrize("schema", [SELF, LISTS, WITHIN])
def test_a_schema_that_cannot_end_is_refused(schema: Schema):
    with pytest.raises(InvalidRequestError, match="no value fits") as caught:
        COMPILER.json_schema(schema, "response_format.json_schema.schema")
    assert (caught.value.param or "").startswith("response_format.json_schema.schema")


@pytest.mark.parametrize("schema", ENDING, ids=str)
def test_a_schema_that_may_end_is_taken(schema: Schema):
    COMPILER.json_schema(schema)
