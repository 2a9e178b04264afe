"""What the Responses API cannot honour, each field by its own name there."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from tests.contract.contract import validate
from tests.http_lead import Lead
from tests.server.api.test_responses import WEATHER, post

DEEP: dict[str, Any] = functools.reduce(lambda inner, _: {"x": inner}, range(300), {})
"""Can be read as JSON, but not be written again."""

BAD: dict[str, Any] = {**WEATHER, "name": "bad", "parameters": {"type": "array"}}
ALLOWED: dict[str, Any] = {"type": "allowed_tools", "mode": "auto"}

UNHONOURABLE: list[tuple[dict[str, Any], str]] = [
    ({"input": None}, "input"),
    ({"input": []}, "input"),
    ({"input": 1}, "input"),
    ({"input": [{"type": "web_search_call", "id": "1"}]}, "input"),
    ({"input": [{"role": "user"}]}, "input.0.content"),
    ({"input": [{"role": "nobody", "content": "x"}]}, "input.0.role"),
    ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input.0.content.0.type"),
    ({"input": [{"type": "function_call_output", "output": "x"}]}, "input.0.call_id"),
    ({"tools": [{"name": "f"}]}, "tools.0.type"),
    ({"tools": [{"type": "web_search"}], "tool_choice": {"type": "web_search"}}, "tool_choice.type"),
    ({"tools": [{"type": "web_search"}], "tool_choice": "required"}, "tool_choice"),
    ({"tools": [WEATHER, {"type": "shell"}], "tool_choice": {"type": "shell"}}, "tool_choice.type"),
    (
        {"tools": [WEATHER, {"type": "apply_patch"}], "tool_choice": {"type": "apply_patch"}},
        "tool_choice.type",
    ),
    ({"tools": [WEATHER, {"type": "custom", "name": "a b"}]}, "tools.1.name"),
    ({"tools": [{"type": "custom", "name": "f", "format": {"type": "grammar"}}]}, "tools.0.format.syntax"),
    ({"tools": [{"type": "namespace", "name": "n"}]}, "tools.0.tools"),
    (
        {"tools": [{"type": "web_search"}, {"type": "namespace", "name": "n", "tools": [WEATHER, BAD]}]},
        "tools.1.tools.1.parameters.type",
    ),
    ({"tools": [WEATHER], "tool_choice": {"type": "custom", "name": "weather"}}, "tool_choice"),
    (
        {"tools": [WEATHER], "tool_choice": {**ALLOWED, "tools": [{"type": "web_search"}]}},
        "tool_choice.tools",
    ),
    ({"tools": [{"type": "function", "name": "a b"}]}, "tools.0.name"),
    ({"tools": [WEATHER, WEATHER]}, "tools.1.name"),
    ({"tools": [{**WEATHER, "parameters": DEEP}]}, "tools.0.parameters"),
    (
        {"tools": [{**WEATHER, "parameters": DEEP}], "tool_choice": "none", "stream": True},
        "tools.0.parameters",
    ),
    ({"text": {"format": {"type": "text", "schema": DEEP}}}, "text.format.schema"),
    ({"tools": [WEATHER], "tool_choice": {"type": "function", "name": "f"}}, "tool_choice"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema"),
    ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
    (
        {"text": {"format": {"type": "json_schema", "schema": {"type": "nothing"}}}},
        "text.format.schema.type",
    ),
    ({"multi_agent": {"enabled": True}}, "multi_agent"),
    ({"reasoning": {"effort": "huge"}}, "reasoning.effort"),
    ({"prompt": {"id": "pmpt_1"}}, "prompt"),
    ({"truncation": "middle"}, "truncation"),
    ({"max_output_tokens": 0}, "max_output_tokens"),
    ({"max_output_tokens": 3, "min_tokens": 4}, "min_tokens"),
    ({"top_logprobs": 21}, "top_logprobs"),
    ({"temperature": 101}, "temperature"),
    ({"metadata": {"a": 1}}, "metadata.a"),
    ({"store": "yes"}, "store"),
    ({"input": "x" * 5000}, "input"),
    ({"speculative": {"n_max": 1, "n_min": 2}}, "speculative.n_min"),
]


@pytest.mark.parametrize(("body", "param"), UNHONOURABLE, ids=lambda value: str(value)[:60])
def test_unsupported_field_is_named_400(lead: Lead, body: dict[str, Any], param: str):
    response = post(lead, **body)
    assert response.status_code == 400
    validate("Error", response.json())
    error = response.json()["error"]
    assert error["param"] == param
    assert "messages" not in error["message"]
    lead.until_idle()
