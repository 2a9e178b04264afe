"""Which arguments of calls the grammars hold.

Schemas with idle keywords, schemas that cannot be kept, and functions without parameters.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from server.formats.families import FAMILIES, Family
from server.formats.spelling import written
from tests.server.api.test_family_calls import source
from tests.server.api.test_tools import CITY, UNKEPT, WEATHER, allows, asked, prompt_of, refusal, request_of
from tests.templates import QWEN_CODER


def tool(name: str, **definition: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **definition}}


def call(name: str, arguments: Any) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {json.dumps(arguments)}}}\n</tool_call>'


IDLE = {
    "type": "object",
    "properties": {"n": {"type": "integer", "uniqueItems": False}, "p": {"type": "string", "format": "path"}},
    "propertyNames": {"type": "string"},
}


@pytest.mark.parametrize("choice", ["auto", "required"])
def test_keywords_that_change_nothing_leave_calls_held(choice: str):
    request = asked(tools=[tool("f", parameters=IDLE)], tool_choice=choice)
    assert allows(request, call("f", {"n": 1, "p": "a b"}))
    assert not allows(request, call("f", {"n": "1"}))


@pytest.mark.parametrize("choice", ["required", "auto"])
def test_patterns_without_quotes_are_held(choice: str):
    text = {"type": "string", "pattern": '^[^"]+$'}
    parameters = {"type": "object", "properties": {"s": text}, "required": ["s"]}
    request = asked(tools=[tool("f", parameters=parameters)], tool_choice=choice)
    assert allows(request, call("f", {"s": "a"}))
    assert not allows(request, call("f", {"s": 'a"'}))


def test_members_hold_beside_structured_answer():
    named = {"name": "x", "schema": {**IDLE, "required": ["n"]}}
    asked_for = {"type": "json_schema", "json_schema": named}
    request = asked(tools=[tool("f", parameters=IDLE)], response_format=asked_for)
    assert allows(request, '{"n": 1, "p": "a b"}')
    assert not allows(request, '{"p": "a b"}')


def test_unholdable_schema_leaves_others_held():
    request = asked(tools=[WEATHER, UNKEPT])
    assert allows(request, call("weather", {"city": "Paris"}))
    assert not allows(request, call("weather", {"city": 1}))
    assert allows(request, call("f", {"anything": [1]}))
    assert not allows(request, call("f", [1]))
    assert not allows(request, call("g", {}))


def test_tagged_parameters_hold_beside_unholdable_ones():
    unkept = {"properties": {"town": {"type": "string", "not": {"const": "x"}}}}
    request = request_of(QWEN_CODER, tools=[WEATHER, tool("f", parameters=unkept)])
    called = "<tool_call>\n<function={}>\n<parameter={}>\nx\n</parameter>\n</function>\n</tool_call>"
    assert allows(request, called.format("weather", "city"))
    assert not allows(request, called.format("weather", "town"))
    assert allows(request, called.format("f", "town"))
    assert not allows(request, called.format("f", "city"))


async def test_strict_unholdable_function_is_refused():
    strict = tool("g", parameters=UNKEPT["function"]["parameters"], strict=True)
    error = await refusal(tools=[UNKEPT, WEATHER, strict])
    assert error["param"].startswith("tools.2.function.parameters")
    assert "g is strict" in error["message"]


def test_strict_function_spares_its_neighbours():
    strict = tool("weather", parameters=CITY, strict=True)
    request = asked(tools=[UNKEPT, strict])
    assert not allows(request, call("weather", {"city": 1}))
    assert allows(request, call("f", {"a": 1}))


WITHOUT: list[dict[str, Any]] = [
    {},
    {"parameters": {}},
    {"parameters": {"type": "object"}},
    {"parameters": {"type": "object", "properties": {}, "required": [], "title": "fArguments"}},
    {"parameters": {"properties": {}, "$defs": {"A": {"type": "string"}}}},
]
WITH: list[dict[str, Any]] = [
    {"parameters": {"type": "object", "additionalProperties": True}},
    {"parameters": {"type": "object", "patternProperties": {"^a": {}}}},
    {"parameters": {"$ref": "#/$defs/A", "$defs": {"A": {"properties": {"a": {}}}}}},
    {"parameters": {"anyOf": [{"properties": {"a": {}}}]}},
    {"parameters": {"required": ["a"]}},
]


@pytest.mark.parametrize("choice", ["auto", "required"])
@pytest.mark.parametrize("definition", WITHOUT, ids=json.dumps)
def test_a_function_without_parameters_has_no_arguments(definition: dict[str, Any], choice: str):
    request = asked(tools=[tool("f", **definition)], tool_choice=choice)
    assert allows(request, call("f", {}))
    assert not allows(request, call("f", {"a": 1}))


@pytest.mark.parametrize("definition", WITH, ids=json.dumps)
def test_open_schema_admits_members(definition: dict[str, Any]):
    assert allows(asked(tools=[tool("f", **definition)], tool_choice="required"), call("f", {"a": 1}))


TAGGED = [one for one in FAMILIES if one.calls and not one.channels and not one.thoughts]


@pytest.mark.parametrize("family", TAGGED, ids=lambda family: family.name)
def test_idle_keywords_hold_everywhere(family: Family):
    assert family.calls
    request = request_of(source(family), tools=[tool("f")], tool_choice="required")
    none, some = (
        written([{"id": "a12345678", "function": {"name": "f", "arguments": arguments}}], family.calls)
        for arguments in ("{}", '{"a": "b"}')
    )
    assert allows(request, none)
    assert not allows(request, some)


def test_prompt_keeps_function_without_parameters():
    shown = tool("f", parameters={"type": "object", "properties": {}})
    assert json.dumps(shown) in prompt_of(tools=[tool("f")])
