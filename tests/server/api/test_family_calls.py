"""Calls that are required, in the syntax of every family, over HTTP: a toy without any syntax writes them."""

from __future__ import annotations

import json

import openai
import pytest

from server.formats.families import FAMILIES, Family
from server.text.template import CHATML
from tests.http_lead import serving
from tests.server.api.test_conversations import toy

SCHEMA = {
    "type": "object",
    "properties": {"b": {"type": "string", "maxLength": 9}, "a": {"enum": [1, 2]}, "t": {"type": "boolean"}},
    "required": ["b", "a"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "look_up", "parameters": SCHEMA}}


def source(family: Family) -> str:
    """Return a template with the family's signs and nothing else of it."""
    signs = (sign if isinstance(sign, str) else sign[0] for sign in family.signs)
    return "".join(f"{{# {sign} #}}" for sign in signs) + CHATML


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_two_turns_with_a_call_each(family: Family):
    with (
        serving(toy(), template=source(family)) as lead,
        openai.OpenAI(base_url=f"{lead.url}/v1", api_key="none", max_retries=0) as client,
    ):
        assert lead.services.template.style.family.name == family.name
        history: list[object] = [{"role": "user", "content": "look it up"}]
        for turn in range(2):
            reply = client.chat.completions.create(
                model="default",
                messages=history,  # pyright: ignore[reportArgumentType]
                tools=[TOOL],  # pyright: ignore[reportArgumentType]
                tool_choice="required",
                parallel_tool_calls=False,
                temperature=1,
                seed=turn,
                max_tokens=600,
                extra_body={"reasoning_budget": 3},
            )
            message = reply.choices[0].message
            assert reply.choices[0].finish_reason == "tool_calls"
            assert not message.content
            assert message.tool_calls
            call = message.tool_calls[0]
            assert call.type == "function"
            assert call.function.name == "look_up"
            arguments = json.loads(call.function.arguments)
            assert len(arguments["b"]) <= 9
            assert arguments["a"] in (1, 2)
            history += [
                message.model_dump(exclude_none=True),
                {"role": "tool", "tool_call_id": call.id, "content": "42"},
            ]
        lead.until_idle()
