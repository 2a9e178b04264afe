"""Calls of tools whose schemas no grammar can hold, and calls beside another form of reply."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from server.api.call_grammar import CallGrammar
from server.api.stages.submit import prepared_chat
from server.api.stages.validate import checked, parsed
from server.grammar.definition import KEYWORD
from tests.fake_backend import FakeVocabulary
from tests.server.api.scripted import Script
from tests.server.api.test_tools import (
    A_CALL,
    CITY,
    HELLO,
    PARIS,
    WEATHER,
    allows,
    asked,
    request_of,
    setting,
)
from tests.templates import GEMMA, LFM, QWEN_CODER


@pytest.mark.parametrize(
    "keyword",
    [
        {"not": {}},
        {"not": {"type": "null"}},
        {"uniqueItems": True},
        {"if": {"minLength": 3}},
        {"contains": {}},
        {"propertyNames": {"pattern": "^a"}},
    ],
    ids=str,
)
@pytest.mark.parametrize(
    "fields", [{"tool_choice": "required"}, {"response_format": {"type": "json_object"}}, {}], ids=str
)
def test_others_hold_beside_unholdable_tool(
    keyword: dict[str, Any], fields: dict[str, Any], caplog: pytest.LogCaptureFixture
):
    parameters = {"type": "object", "properties": {"x": {"type": "array", "maxItems": 2, **keyword}}}
    loose = {"type": "function", "function": {"name": "loose", "parameters": parameters}}
    request = asked(tools=[WEATHER, loose], **fields)
    call = '<tool_call>\n{"name": "%s", "arguments": %s}\n</tool_call>'
    assert allows(request, call % ("weather", PARIS))
    assert not allows(request, call % ("weather", '{"town": "Paris"}'))
    assert allows(request, call % ("loose", '{"x": ["a", "a"]}'))
    assert not allows(request, call % ("loose", '{"x": ["a", "a", "a"]}'))
    assert not allows(request, call % ("loose", '{"x": "a"}'))
    assert f"calls of the tool loose: properties.x.{next(iter(keyword))} of" in caplog.text


def test_a_required_call_needs_no_form():
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": CITY}}
    for choice in ("required", {"type": "function", "function": {"name": "weather"}}):
        request = asked(tool_choice=choice, response_format=form)
        assert allows(request, A_CALL)
        assert not allows(request, PARIS)


def test_grammar_holds_without_calls():
    request = asked(tool_choice="none", grammar='root ::= "a"')
    assert allows(request, "a")
    assert not allows(request, "b")


def test_equal_tools_share_their_rules(monkeypatch: pytest.MonkeyPatch):
    written: list[str] = []
    whole = CallGrammar.calls_in_text

    def noted(grammar: CallGrammar, functions: Mapping[str, Any]) -> str | None:
        written.extend(functions)
        return whole(grammar, functions)

    monkeypatch.setattr(CallGrammar, "calls_in_text", noted)
    state = setting(Script(), FakeVocabulary(), grammars=True)
    called = '<tool_call>\n{"name": "weather", "arguments": %s}\n</tool_call>'
    order: dict[str, Any] = {**CITY, "properties": {"b": {}, "a": {}}}
    turned: dict[str, Any] = {**CITY, "properties": {"a": {}, "b": {}}}
    for parameters, held in ((CITY, PARIS), (order, '{"b": 1, "a": 2}'), (turned, '{"a": 1, "b": 2}')) * 2:
        tools = [
            {
                "type": "function",
                "function": {"name": "weather", "parameters": {**parameters, "required": []}},
            }
        ]
        body = checked(state, {"messages": HELLO, "tools": tools})
        [request] = prepared_chat(state, body).requests
        assert allows(request, called % held)
    assert written == ["weather"] * 3


NOTHING_FITS: dict[str, dict[str, Any]] = {
    "no type": {"type": []},
    "no value": {"enum": []},
    "no number": {"type": "integer", "minimum": 5, "maximum": 1},
    "no length": {"type": "string", "minLength": 5, "maxLength": 1},
}


@pytest.mark.parametrize("choice", ["auto", "required"])
@pytest.mark.parametrize("kind", NOTHING_FITS)
@pytest.mark.parametrize("template", [QWEN_CODER, LFM, GEMMA], ids=["tags", "python", "gemma"])
def test_a_member_that_nothing_fits(template: str, kind: str, choice: str):
    parameters = {"type": "object", "properties": {"a": NOTHING_FITS[kind], "b": {"type": "string"}}}
    odd = {"type": "function", "function": {"name": "odd", "parameters": parameters}}
    assert request_of(template, tools=[odd, WEATHER], tool_choice=choice).constraint


def test_no_request_has_the_keyword_of_definitions():
    given = {"type": "string", "x-grammar": {"syntax": "lark", "definition": "start: nothing"}, KEYWORD: 1}
    parameters = {"type": "object", "properties": {"input": given}, "required": ["input"]}
    tool = {"type": "function", "function": {"name": "weather", "parameters": parameters}}
    data = parsed(json.dumps({"messages": HELLO, "tools": [tool], "tool_choice": "required"}).encode())
    state = setting(Script(), FakeVocabulary(), grammars=True)
    [request] = prepared_chat(state, checked(state, data)).requests
    assert allows(request, '<tool_call>\n{"name": "weather", "arguments": {"input": "x"}}\n</tool_call>')
