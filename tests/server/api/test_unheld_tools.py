"""Calls of tools whose schemas no grammar can hold, and calls beside another form of reply."""

from __future__ import annotations

from typing import Any

import pytest

from tests.server.api.test_tools import A_CALL, CITY, PARIS, WEATHER, allows, asked


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
def test_other_tools_are_held_beside_one_that_cannot_be(
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
    assert f"loose are not held to properties.x.{next(iter(keyword))} of" in caplog.text


def test_a_required_call_needs_no_form():
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": CITY}}
    for choice in ("required", {"type": "function", "function": {"name": "weather"}}):
        request = asked(tool_choice=choice, response_format=form)
        assert allows(request, A_CALL)
        assert not allows(request, PARIS)


def test_a_grammar_holds_where_no_tool_may_be_called():
    request = asked(tool_choice="none", grammar='root ::= "a"')
    assert allows(request, "a")
    assert not allows(request, "b")
