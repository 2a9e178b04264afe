"""How many tools a request may bring, and how deep their schemas may be."""

from __future__ import annotations

from typing import Any

import pytest

from tests.server.api.test_tools import TOOLS, WEATHER, asked, refusal


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
        ({"tools": numbered(129)}, "tools"),
        ({"tools": TOOLS, "tool_choice": allowed(129)}, "tool_choice.allowed_tools.tools"),
        ({"tools": [WEATHER, nested(121)]}, "tools.1.function.parameters"),
        ({"tools": [nested(300)], "tool_choice": "none"}, "tools.0.function.parameters"),
    ],
    ids=["tools", "allowed", "too deep", "too deep and not called"],
)
async def test_beyond_the_limits_is_refused_by_name(fields: dict[str, Any], param: str):
    assert (await refusal(**fields))["param"] == param


def test_up_to_the_limits_is_fine():
    assert asked(tools=[*numbered(127), nested(120)])
    assert asked(tools=numbered(128), tool_choice=allowed(128))
