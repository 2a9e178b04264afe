"""How many tools a request may bring, and how deep their schemas may be."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from server.api.stages.constrain import MAX_HELD
from server.api.tools import MAX_TOOLS
from server.grammar.compiler import Compiler, Kind
from server.grammar.grammar_constraint import CompiledGrammar
from tests.fake_backend import FakeVocabulary
from tests.server.api.scripted import Call, Script
from tests.server.api.test_tools import HELLO, UNKEPT, WEATHER, allows, asked, refusal, setting


def numbered(n: int) -> list[dict[str, Any]]:
    return [{"type": "function", "function": {"name": f"f{i}"}} for i in range(n)]


def nested(n_levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object"}
    for _ in range(n_levels - 1):
        schema = {"x": schema}
    return {"type": "function", "function": {"name": "deep", "parameters": schema}}


def allowed(n: int) -> dict[str, Any]:
    return {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": numbered(n)}}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": numbered(MAX_TOOLS + 1)}, "tools"),
        ({"tools": numbered(MAX_HELD + 1), "tool_choice": "required"}, "tools"),
        ({"tools": [WEATHER, nested(121)]}, "tools.1.function.parameters"),
        ({"tools": [nested(300)], "tool_choice": "none"}, "tools.0.function.parameters"),
    ],
    ids=["tools", "required", "too deep", "too deep and not called"],
)
async def test_beyond_the_limits_is_refused_by_name(fields: dict[str, Any], param: str):
    assert (await refusal(**fields))["param"] == param


def test_up_to_the_limits_is_fine():
    assert asked(tools=[*numbered(127), nested(120)])
    assert asked(tools=numbered(200), tool_choice=allowed(200)).constraint
    assert asked(tools=numbered(MAX_HELD + 1)).constraint is None


def multiple_of(n: int) -> dict[str, Any]:
    schema = {"type": "object", "properties": {"n": {"type": "integer", "multipleOf": n}}}
    return {"type": "function", "function": {"name": f"f{n}", "parameters": schema}}


@pytest.mark.parametrize("choice", ["auto", "required"])
def test_multiples_beyond_their_bound_are_unchecked(choice: str):
    request = asked(tools=[multiple_of(30_011), multiple_of(30_013)], tool_choice=choice)
    for n, held in ((30_011, True), (30_013, False)):
        call = '<tool_call>\n{"name": "f%d", "arguments": {"n": %d}}\n</tool_call>'
        assert allows(request, call % (n, n))
        assert allows(request, call % (n, n + 1)) is not held


class Counting(Compiler):
    n_compiled = 0

    def _compile_deep(self, kind: Kind, text: str, param: str) -> CompiledGrammar:
        self.n_compiled += 1
        return super()._compile_deep(kind, text, param)


async def answered(grammars: Compiler, path: str = "/v1/chat/completions", **body: Any) -> Call:
    vocabulary = FakeVocabulary()
    state = replace(setting(Script(), vocabulary), grammars=grammars)
    one = Call(state, path, body=body)
    await asyncio.wait_for(one.run(), 10)
    return one


@pytest.mark.parametrize(
    ("path", "field", "name"),
    [("/v1/chat/completions", "messages", "response_format"), ("/v1/responses", "input", "text")],
)
async def test_long_prompt_compiles_no_grammar(path: str, field: str, name: str):
    grammars = Counting(FakeVocabulary())
    messages = [{"role": "user", "content": "x" * (1 << 16)}]
    form = {"type": "json_object"}
    body = {field: messages, "tools": [WEATHER], name: form if name != "text" else {"format": form}}
    if name == "text":
        body["tools"] = [{"type": "function", "name": "weather", "parameters": {}}]
    one = await answered(grammars, path, **body)
    assert one.status == 400
    assert one.json["error"]["code"] == "context_length_exceeded"
    assert one.json["error"]["param"] == field
    assert f"length of the {field}." in one.json["error"]["message"]
    assert grammars.n_compiled == 0


async def test_a_refused_request_displaces_no_kept_grammar():
    grammars = Counting(FakeVocabulary())
    kept = grammars.json_object()
    strict = {**UNKEPT["function"], "strict": True}
    tools = [*(multiple_of(i + 2) for i in range(100)), {"type": "function", "function": strict}]
    one = await answered(grammars, messages=HELLO, tools=tools, tool_choice="required")
    assert one.status == 400
    assert one.json["error"]["param"].startswith("tools.100.function.parameters")
    assert grammars.n_compiled > 100
    assert grammars.json_object() is kept
