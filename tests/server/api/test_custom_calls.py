"""Calls of custom tools in chat completions: told with a text, streamed as it grows, read back."""

from __future__ import annotations

from typing import Any

import pytest

from tests.server.api.test_foreign_histories import prompt_of
from tests.server.api.test_tools import HELLO, WEATHER, tell

PATCH = {"type": "custom", "custom": {"name": "patch", "description": "Applies a patch."}}
INPUT = '*** Begin "Patch"\n+\\ ü'
CALL = (
    '<tool_call>\n{"name": "patch", "arguments": '
    '{"input": "*** Begin \\"Patch\\"\\n+\\\\ \\u00fc"}}\n</tool_call>'
)
OTHER = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'


async def test_a_whole_custom_call_has_its_input():
    body = (await tell(CALL + "\n" + OTHER, tools=[PATCH, WEATHER])).json
    custom, function = body["choices"][0]["message"]["tool_calls"]
    assert (custom["type"], custom["custom"]) == ("custom", {"name": "patch", "input": INPUT})
    assert function["function"]["arguments"] == '{"city": "Paris"}'


async def test_a_custom_call_is_streamed():
    *chunks, _ = (await tell(CALL + "\n" + OTHER, tools=[PATCH, WEATHER], stream=True)).events
    deltas = [one for chunk in chunks for one in chunk["choices"][0]["delta"].get("tool_calls", ())]
    begun = [one for one in deltas if "id" in one]
    assert [one["type"] for one in begun] == ["custom", "function"]
    inputs = [one["custom"]["input"] for one in deltas if one["index"] == 0]
    assert "".join(inputs) == INPUT
    assert len(inputs) > 1
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"


@pytest.mark.parametrize("stream", [False, True])
async def test_arguments_without_input_are_not_lost(stream: bool):
    odd = '<tool_call>\n{"name": "patch", "arguments": {"patch": "x"}}\n</tool_call>'
    call = await tell(odd, tools=[PATCH], stream=stream)
    assert b'{\\"patch\\": \\"x\\"}' in call.content


def test_custom_calls_of_the_history_are_shown():
    custom: dict[str, Any] = {"id": "c1", "type": "custom", "custom": {"name": "patch", "input": INPUT}}
    result = {"role": "tool", "tool_call_id": "c1", "content": "done"}
    prompt = prompt_of(*HELLO, {"role": "assistant", "content": None, "tool_calls": [custom]}, result)
    assert "patch" in prompt
    assert "Begin" in prompt
