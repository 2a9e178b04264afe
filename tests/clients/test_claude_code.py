"""What Claude Code 2.1 sends, in its form and our words: a turn that calls a tool, and the next."""

from __future__ import annotations

import json
from typing import Any

import httpx

from tests.clients.written import Written, writing

KEPT = {"cache_control": {"type": "ephemeral"}}
BETAS = (
    "claude-code-20250219,context-1m-2025-08-07,interleaved-thinking-2025-05-14,"
    "context-management-2025-06-27,prompt-caching-scope-2026-01-05,mid-conversation-system-2026-04-07"
)
HEADERS = {
    "anthropic-beta": BETAS,
    "anthropic-dangerous-direct-browser-access": "true",
    "anthropic-version": "2023-06-01",
    "user-agent": "claude-cli/2.1.197 (external, sdk-cli)",
    "x-api-key": "none",
    "x-app": "cli",
    "x-stainless-retry-count": "0",
}
BASH = {
    "name": "Bash",
    "description": "Runs a command.",
    "input_schema": {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": {
            "command": {"type": "string", "description": "what to run"},
            "timeout": {"type": "number"},
        },
        "required": ["command"],
        "additionalProperties": False,
    },
}
FIRST: list[Any] = [
    {
        "role": "user",
        "content": [
            {"type": "text", "text": "<system-reminder>\nToday is a Monday.\n</system-reminder>"},
            {"type": "text", "text": "Greet me by a command", **KEPT},
        ],
    },
    {"role": "system", "content": "There is one kind of agent."},
]
COMMAND = {"command": "echo hi"}
CALL = '<tool_call>\n{"name": "Bash", "arguments": {"command": "echo hi"}}\n</tool_call>'


def body(messages: list[Any], checksum: str) -> dict[str, Any]:
    return {
        "model": "claude-opus-4-8",
        "messages": messages,
        "system": [
            {"type": "text", "text": f"x-anthropic-billing-header: cc_version=2.1.197.{checksum};"},
            {"type": "text", "text": "You write programs.", **KEPT},
            {"type": "text", "text": "\nBe brief.", **KEPT},
        ],
        "tools": [BASH],
        "metadata": {"user_id": '{"device_id":"0"}'},
        "max_tokens": 64000,
        "thinking": {"type": "adaptive"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "output_config": {"effort": "high"},
        "stream": True,
    }


def blocks_of(lead: Written, messages: list[Any], checksum: str) -> list[dict[str, Any]]:
    """Return the reply's blocks, assembled from events as a client does."""
    response = httpx.post(
        f"{lead.url}/v1/messages?beta=true", json=body(messages, checksum), headers=HEADERS, timeout=30
    )
    assert response.status_code == 200, response.text
    blocks: list[dict[str, Any]] = []
    written = ""
    for line in response.text.splitlines():
        event: Any = json.loads(line.removeprefix("data: ")) if line.startswith("data: ") else None
        match event:
            case {"type": "content_block_start", "content_block": block}:
                blocks.append(block)
            case {"delta": {"type": "input_json_delta", "partial_json": text}}:
                written += text
                blocks[-1]["input"] = text
            case {"delta": {"type": kind, **told}} if kind.endswith("_delta"):
                [(name, text)] = told.items()
                blocks[-1][name] += text
            case {"type": "content_block_stop"} if written:
                blocks[-1]["input"], written = json.loads(written), ""
            case _:
                pass
    return blocks


def test_tool_call_and_next_turn():
    with writing("<think>\nHm.\n</think>\n\nI run it." + CALL, "It says hi.") as lead:
        assert httpx.head(lead.url).status_code == 200  # is anybody there?
        said = blocks_of(lead, FIRST, "2e3")
        assert [block["type"] for block in said] == ["thinking", "text", "tool_use"]
        assert said[2]["input"] == COMMAND
        result = {"type": "tool_result", "tool_use_id": said[2]["id"], "content": "hi", "is_error": False}
        turns = [
            *FIRST,
            {"role": "assistant", "content": said},
            {"role": "user", "content": [{**result, **KEPT}]},
        ]
        assert blocks_of(lead, turns, "f01") == [{"type": "text", "text": "It says hi."}]
        first, second = lead.prompts
    for told in ("Greet me by a command", "There is one kind of agent.", "You write programs.", "Be brief."):
        assert told in first
    assert "billing" not in first
    assert second.startswith(first)  # so that the cache has all of it
    assert "<tool_response>\nhi\n</tool_response>" in second
