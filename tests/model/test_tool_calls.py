"""The bundled model calls tools, as it was trained to, through the OpenAI SDK."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletion

from server.llama.llamacpp import LlamaBackend
from server.text.template import ChatTemplate
from tests.http_lead import serving

pytestmark = pytest.mark.model

HELLO: list[Any] = [{"role": "user", "content": "What is the weather in Paris?"}]


def tool(name: str, description: str, **parameters: str) -> dict[str, Any]:
    properties = {key: {"type": "string", "description": value} for key, value in parameters.items()}
    schema = {"type": "object", "properties": properties, "required": list(parameters)}
    return {
        "type": "function",
        "function": {"name": name, "description": description, "parameters": schema},
    }


TOOLS: list[Any] = [
    tool("get_weather", "Current weather in a city", city="The city"),
    tool("calculator", "Evaluate an arithmetic expression", expression="The expression"),
]


@pytest.fixture(scope="module")
def client(q8_target: LlamaBackend) -> Iterator[openai.OpenAI]:
    with (
        serving(q8_target, template=q8_target.chat_template) as lead,  # pyright: ignore[reportArgumentType]
        openai.OpenAI(base_url=f"{lead.url}/v1", api_key="none", timeout=100) as client,
    ):
        yield client


def ask(client: openai.OpenAI, messages: list[Any], **more: Any) -> ChatCompletion:
    """Return a streamed reply as the SDK puts it together."""
    with client.chat.completions.stream(
        model="toy",
        messages=messages,
        tools=TOOLS,
        temperature=0,
        max_tokens=100,
        stream_options={"include_usage": True},
        **more,
    ) as stream:
        return stream.get_final_completion()


def calls_of(reply: ChatCompletion) -> list[tuple[str, Any]]:
    assert reply.choices[0].finish_reason == "tool_calls"
    assert reply.choices[0].message.content is None
    calls: list[tuple[str, Any]] = []
    for call in reply.choices[0].message.tool_calls or []:
        assert call.type == "function"
        calls.append((call.function.name, json.loads(call.function.arguments)))
    return calls


def test_the_template_is_of_a_known_family(q8_target: LlamaBackend):
    template = ChatTemplate(q8_target.chat_template)
    assert template.style.family.name == "json in tags"
    assert template.capabilities.tools
    assert template.capabilities.calls


def test_model_calls_and_uses_tool(client: openai.OpenAI):
    reply = ask(client, HELLO)
    assert calls_of(reply) == [("get_weather", {"city": "Paris"})]
    call = (reply.choices[0].message.tool_calls or [])[0]
    assert call.type == "function"
    function = {"name": call.function.name, "arguments": call.function.arguments}
    history: list[Any] = [
        *HELLO,
        {"role": "assistant", "tool_calls": [{"id": call.id, "type": "function", "function": function}]},
        {
            "role": "tool",
            "tool_call_id": call.id,
            "content": json.dumps({"city": "Paris", "temperature": 21, "condition": "sunny"}),
        },
    ]
    answer = ask(client, history)
    assert "sunny" in (answer.choices[0].message.content or "")
    assert answer.choices[0].finish_reason == "stop"
    assert reply.usage
    assert answer.usage
    assert answer.usage.prompt_tokens_details
    said = reply.usage.prompt_tokens + reply.usage.completion_tokens
    assert (answer.usage.prompt_tokens_details.cached_tokens or 0) >= said - 1


def test_two_at_once_and_one_at_most(client: openai.OpenAI):
    both: list[Any] = [{"role": "user", "content": "I need the weather in Rome and Athens."}]
    cities = [("get_weather", {"city": "Rome"}), ("get_weather", {"city": "Athens"})]
    assert calls_of(ask(client, both)) == cities
    assert calls_of(ask(client, both, parallel_tool_calls=False)) == cities[:1]


def test_required_call_is_made(client: openai.OpenAI):
    list_question: list[Any] = [{"role": "user", "content": "Can you explain what a dictionary is?"}]
    assert ask(client, list_question).choices[0].finish_reason == "stop"
    (name, arguments), *_ = calls_of(ask(client, list_question, tool_choice="required"))
    assert {"get_weather": {"city"}, "calculator": {"expression"}}[name] == set(arguments)
    named: dict[str, Any] = {"type": "function", "function": {"name": "calculator"}}
    ((name, arguments),) = calls_of(ask(client, HELLO, tool_choice=named))
    assert (name, set(arguments)) == ("calculator", {"expression"})


def test_forbidden_call_is_not_made(client: openai.OpenAI):
    message = ask(client, HELLO, tool_choice="none").choices[0].message
    assert not message.tool_calls
    assert message.content
    assert "<tool_call>" not in message.content
