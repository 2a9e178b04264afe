"""Calls that a limit cuts off before their name is told."""

from __future__ import annotations

from typing import Any

import pytest

from tests.server.api.test_tools import A_CALL, TOOLS, deltas, whole

NAMELESS = A_CALL[: A_CALL.index("weather") + 3]


@pytest.mark.parametrize("marks", [False, True])
async def test_call_without_name_is_hidden(marks: bool):
    fields: dict[str, Any] = {"reason": "length"}
    text = f"Let me see.\n{NAMELESS}"
    choice = await whole(text, tools=TOOLS, marks=marks, **fields)
    told = await deltas(text, tools=TOOLS, marks=marks, **fields)
    assert choice["finish_reason"] == "length"
    assert choice["message"]["content"] == "Let me see."
    assert "tool_calls" not in choice["message"]
    assert "".join(delta.get("content") or "" for delta in told) == "Let me see."
    assert told[-1] == {"finish_reason": "length"}


async def test_model_endings_are_reported():
    choice = await whole(NAMELESS, tools=TOOLS)
    assert choice["message"]["content"] == NAMELESS
    assert choice["finish_reason"] == "stop"
