"""Conversations of many turns with tool calls evaluate nothing twice.

Through the OpenAI SDK, over a toy that grammars make call the tools.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Iterator
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletion

from server.api.history import History
from server.text.template import CHATML
from tests.http_lead import Lead, serving
from tests.server.api.test_conversations import SLACK, n_new, toy
from tests.templates import (
    DEEPSEEK,
    GEMMA,
    HARMONY,
    KIMI,
    LFM,
    LLAMA3_TOOLS,
    MISTRAL,
    QWEN_CODER,
    REASONING,
    THINKING,
)

TEMPLATES = {
    "chatml": CHATML,
    "llama 3": LLAMA3_TOOLS,
    "thinking": THINKING,
    "mistral": MISTRAL,
    "reasoning": REASONING,
    "kimi": KIMI,
    "harmony": HARMONY,
    "deepseek": DEEPSEEK,
    "qwen coder": QWEN_CODER,
    "lfm": LFM,
    "gemma": GEMMA,
}
MARKS = 85  # bytes of the marks between a reply and the next message, at most: Llama 3 has three
SCHEMA = {
    "type": "object",
    "properties": {"b": {"enum": ["Oslo, by night", "Rome"]}, "a": {"enum": [1, 2, 345]}},
    "required": ["b", "a"],
    "additionalProperties": False,
}
TOOLS: list[Any] = [{"type": "function", "function": {"name": "look_up", "parameters": SCHEMA}}]


@pytest.fixture
def lead(request: pytest.FixtureRequest) -> Iterator[Lead]:
    with serving(toy(), template=request.param) as one:
        yield one


async def _only_remember(_: History, remembering: Awaitable[list[int]], __: str) -> None:
    await remembering


def say(client: openai.OpenAI, history: list[Any], choice: Any, **more: Any) -> ChatCompletion:
    return client.chat.completions.create(
        model="default",
        messages=history,
        tools=TOOLS,
        tool_choice=choice,
        temperature=1,
        seed=len(history),
        max_tokens=300,
        extra_body=more,
    )


def around(lead: Lead, message: dict[str, Any]) -> int:
    """Return how many bytes (the toy's tokens) the template puts around a message."""
    before: list[dict[str, Any]] = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
    call = {"id": "call_0", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    if message["role"] == "tool":
        before[1] |= {"tool_calls": [call]}
    render = lead.services.template.render
    return len(render([*before, {**message, "content": ""}])) - len(render([*before])) + SLACK


@pytest.mark.parametrize("lead", TEMPLATES.values(), ids=TEMPLATES, indirect=True)
@pytest.mark.parametrize(("budget", "busy"), [(0, False), (24, False), (0, True)])
def test_tool_turns_evaluate_only_news(lead: Lead, budget: int, busy: bool, monkeypatch: pytest.MonkeyPatch):
    """busy: the server has no idle time for what the template writes otherwise.

    Nor for the markers between messages, which are many tokens of the toy.
    """
    if busy and lead.services.template.style.family.name == "harmony":
        pytest.skip("the toy begins an answer without a header, as no model does")
    if busy:
        monkeypatch.setattr(History, "_prefill_later", _only_remember)
    history: list[dict[str, Any]] = [{"role": "system", "content": "Answer as you like. " * 10}]
    marked = lead.services.template.style.family.name not in ("llama 3", "harmony")
    more: dict[str, Any] = {
        "chat_template_kwargs": {"enable_thinking": bool(budget)},
        "logit_bias": {"h": -100},  # thoughts end where the budget does
        "reasoning_budget": budget,
        "parallel_tool_calls": False,
    }
    with openai.OpenAI(base_url=f"{lead.url}/v1", api_key="none") as client:
        for turn in range(5):
            history.append({"role": "user", "content": f"question number {turn}, and a little more"})
            for choice in ("required", "none" if marked else "auto"):
                reply = say(client, history, choice, **more)
                if not busy:
                    lead.until_idle()
                if len(history) > 2:
                    most = len(history[-1]["content"]) + around(lead, history[-1]) + busy * MARKS
                    assert n_new(reply) <= most
                message = reply.choices[0].message
                history.append(message.model_dump(exclude_none=True))
                if choice == "required":
                    assert reply.choices[0].finish_reason == "tool_calls"
                    assert message.tool_calls
                    call = message.tool_calls[0]
                    assert call.type == "function"
                    assert set(json.loads(call.function.arguments)) == {"a", "b"}
                    result = f"the answer of turn {turn} is 42"
                    history.append({"role": "tool", "tool_call_id": call.id, "content": result})


@pytest.mark.parametrize("lead", [CHATML], indirect=True)
def test_the_sdk_s_stream_puts_calls_together(lead: Lead):
    history: list[Any] = [{"role": "user", "content": "look it up, twice"}]
    with (
        openai.OpenAI(base_url=f"{lead.url}/v1", api_key="none") as client,
        client.chat.completions.stream(
            model="default", messages=history, tools=TOOLS, tool_choice="required", temperature=1, seed=4
        ) as stream,
    ):
        arguments: dict[int, str] = {}
        for event in stream:
            if event.type == "tool_calls.function.arguments.delta":
                assert event.name == "look_up"
                arguments[event.index] = arguments.get(event.index, "") + event.arguments_delta
        choice = stream.get_final_completion().choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.tool_calls
    told = [call.function.arguments for call in choice.message.tool_calls]
    assert told == [arguments[i] for i in range(len(told))]
    assert all(set(json.loads(one)) == {"a", "b"} for one in told)
