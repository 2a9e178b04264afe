"""Calls that a limit or a stop string cuts off before their name is told."""

from __future__ import annotations

from typing import Any

import pytest

from tests.server.api.test_tools import A_CALL, TOOLS, deltas, whole

NAMELESS = A_CALL[: A_CALL.index("weather") + 3]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [({"reason": "length"}, "length"), ({"stop": "wea"}, "stop")],
    ids=["length", "stop"],
)
@pytest.mark.parametrize("marks", [False, True])
async def test_a_call_that_is_cut_before_its_name_is_not_told(
    fields: dict[str, Any], reason: str, marks: bool
):
    text = f"Let me see.\n{NAMELESS}"
    choice = await whole(text, tools=TOOLS, marks=marks, **fields)
    told = await deltas(text, tools=TOOLS, marks=marks, **fields)
    assert choice["finish_reason"] == reason
    assert choice["message"]["content"] == "Let me see."
    assert "tool_calls" not in choice["message"]
    assert "".join(delta.get("content") or "" for delta in told) == "Let me see."
    assert told[-1] == {"finish_reason": reason}


async def test_what_a_model_ends_itself_is_told_as_it_is():
    choice = await whole(NAMELESS, tools=TOOLS)
    assert choice["message"]["content"] == NAMELESS
    assert choice["finish_reason"] == "stop"
