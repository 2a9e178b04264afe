"""What the Messages API cannot honour, each field by its own name there."""

from __future__ import annotations

from typing import Any

import pytest

from tests.contract.contract import validate
from tests.server.api.test_messages import WEATHER, ask, replying, script


@pytest.mark.parametrize(
    ("body", "named"),
    [
        (
            {"messages": [{"role": "user", "content": [{"type": "image"}]}]},
            "messages.0.content.0.type: `image`",
        ),
        ({"messages": [{"role": "user", "content": [{"type": "document"}]}]}, "messages.0.content.0"),
        (
            {
                "tools": [{"type": "web_search_20250305", "name": "web_search"}],
                "tool_choice": {"type": "tool", "name": "web_search"},
            },
            "tool_choice",
        ),
        (
            {"tools": [{"type": "web_search_20250305", "name": "web_search"}, {**WEATHER, "name": "a b"}]},
            "tools.1.name",
        ),
        ({"thread": {"type": "continue"}}, "thread.previous_message_id"),
        ({"mcp_servers": [{"name": "x"}]}, "mcp_servers"),
        ({"container": "c"}, "container"),
        ({"tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tools": [WEATHER, WEATHER]}, "tools.1.name"),
        ({"tools": [{**WEATHER, "input_schema": {"type": "string"}}]}, "tools.0.input_schema.type"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"messages": []}, "messages"),
    ],
)
async def test_unsupported_field_is_named(body: dict[str, Any], named: str):
    call = await ask(replying(script("yes.")), **body)
    assert call.status == 400
    assert call.json["error"]["type"] == "invalid_request_error"
    assert named in call.json["error"]["message"]
    assert call.json["request_id"] == call.header["request-id"] == call.header["x-request-id"]


@pytest.mark.parametrize(
    ("path", "method", "status", "kind"),
    [
        ("/v1/messages/batches", "POST", 404, "not_found_error"),
        ("/messages/batches/x", "GET", 404, "not_found_error"),
        ("/v1/messages", "GET", 405, "invalid_request_error"),
    ],
)
async def test_unknown_routes_use_anthropic_errors(path: str, method: str, status: int, kind: str):
    call = await ask(replying(), path, method)
    assert call.status == status
    validate("MessagesError", call.json)
    assert call.json["error"]["type"] == kind
