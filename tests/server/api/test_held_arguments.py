"""Which arguments of calls the grammars hold: schemas with idle keywords."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.server.api.test_tools import allows, asked


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


def test_so_they_do_in_the_schema_of_the_answer_beside_calls():
    named = {"name": "x", "schema": {**IDLE, "required": ["n"]}}
    asked_for = {"type": "json_schema", "json_schema": named}
    request = asked(tools=[tool("f", parameters=IDLE)], response_format=asked_for)
    assert allows(request, '{"n": 1, "p": "a b"}')
    assert not allows(request, '{"p": "a b"}')
