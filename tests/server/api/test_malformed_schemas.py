"""What is no JSON schema, in requests to models of every family: refused by its place, never a defect."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from server.engine.events import Finished, Started, Stats
from server.formats.families import FAMILIES, Family
from server.grammar.compiler import Compiler
from server.text.template import ChatTemplate
from tests.fake_backend import FakeVocabulary
from tests.server.api.scripted import Call, Script, services
from tests.server.api.test_family_calls import source
from tests.server.grammar.test_schema_form import MALFORMED

VOCABULARY = FakeVocabulary()
GRAMMARS = Compiler(VOCABULARY)


async def answered(template: ChatTemplate, path: str = "/v1/chat/completions", **body: Any) -> Call:
    script = Script(Started(5, 2), Finished("stop", Stats(5, 2, 0, 0, 1.0, 2.0)))
    state = replace(services(script, vocabulary=VOCABULARY), template=template, grammars=GRAMMARS)
    one = Call(state, path, body={"messages": [{"role": "user", "content": "hello"}], **body})
    await asyncio.wait_for(one.run(), 10)
    return one


def tools(schema: dict[str, Any]) -> list[dict[str, Any]]:
    first = {"type": "function", "function": {"name": "f"}}
    return [first, {"type": "function", "function": {"name": "g", "parameters": schema}}]


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
async def test_invalid_schema_is_refused_by_place(family: Family):
    template = ChatTemplate(source(family))
    for schema, keyword in MALFORMED:
        whole = {"type": "object", "properties": {"x": schema}, "required": ["x"]}
        form = {"type": "json_schema", "json_schema": {"name": "n", "schema": whole}}
        parameters, answer = "tools.1.function.parameters", "response_format.json_schema.schema"
        asked: list[tuple[dict[str, Any], str]] = [
            ({"tools": tools(whole), "tool_choice": "auto"}, parameters),
            ({"tools": tools(whole), "tool_choice": "required"}, parameters),
            ({"tools": tools({}), "response_format": form}, answer),
        ]
        for fields, place in asked:
            one = await answered(template, **fields)
            assert one.status == 400, one.content
            error = one.json["error"]
            assert error["type"] == "invalid_request_error"
            assert error["param"] == f"{place}.properties.x.{keyword}"


async def test_other_apis_name_their_own_fields():
    schema = {"type": "object", "properties": {"x": {"enum": 5}}}
    template = ChatTemplate(source(FAMILIES[0]))
    tool = {"name": "f", "input_schema": schema}
    one = await answered(template, "/v1/messages", tools=[tool], max_tokens=9)
    assert one.status == 400
    assert "tools.0.input_schema.properties.x.enum" in one.json["error"]["message"]
    asked = {"type": "function", "name": "f", "parameters": schema}
    one = await answered(template, "/v1/responses", input="hello", tools=[asked])
    assert one.status == 400
    assert one.json["error"]["param"] == "tools.0.parameters.properties.x.enum"


async def test_empty_parameters_are_accepted():
    nothing = {"type": "string", "enum": None, "required": True, "items": None}
    for family in FAMILIES:
        one = await answered(
            ChatTemplate(source(family)),
            tools=tools({"type": "object", "properties": {"x": nothing}, "required": None}),
            tool_choice="required",
        )
        assert one.status == 200, one.content
