"""Legacy completions and responses with the bundled model, through the official SDK."""

from __future__ import annotations

import json

import openai
import pytest
from openai.types.responses import FunctionToolParam, ResponseFunctionToolCall

from tests.process.duo import QUESTION, Duo

pytestmark = [pytest.mark.model, pytest.mark.timeout(180)]

WEATHER: FunctionToolParam = {
    "type": "function",
    "name": "get_weather",
    "description": "Current weather of a city",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "strict": True,
}


def test_rendered_prompt_gives_chats_reply(duo: Duo, client: openai.OpenAI):
    chat = duo.ask(QUESTION, max_tokens=40)["choices"][0]["message"]["content"]
    prompt = f"<|im_start|>user\n{QUESTION}<|im_end|>\n<|im_start|>assistant\n"
    whole = client.completions.create(
        model="default", prompt=prompt, max_tokens=40, temperature=0, logprobs=2
    )
    [choice] = whole.choices
    assert choice.text == chat
    assert choice.logprobs is not None
    offsets, tokens = choice.logprobs.text_offset or [], choice.logprobs.tokens or []
    assert "".join(tokens) == chat
    assert all(chat.startswith(token, at) for token, at in zip(tokens, offsets, strict=True))
    stream = client.completions.create(
        model="default", prompt=prompt, max_tokens=40, temperature=0, stream=True
    )
    assert "".join(one.text for chunk in stream for one in chunk.choices) == chat


def test_infill_uses_three_control_tokens(client: openai.OpenAI):
    def n_prompt(prompt: str, suffix: str | None = None) -> int:
        body = client.completions.create(model="default", prompt=prompt, suffix=suffix, max_tokens=4)
        assert body.usage is not None
        return body.usage.prompt_tokens

    before, after = "def add(a, b):\n    return ", "\n\nprint(add(1, 2))"
    assert n_prompt(before, after) == n_prompt(before) + n_prompt(after) + 3


def test_a_response_and_the_next_one(client: openai.OpenAI):
    first = client.responses.create(model="default", input=QUESTION, temperature=0)
    assert "oncurrency" in first.output_text
    with client.responses.stream(
        model="default", input="Thanks.", previous_response_id=first.id, temperature=0
    ) as stream:
        second = stream.until_done().get_final_response()
    assert second.output_text
    assert first.usage is not None
    assert second.usage is not None
    assert second.usage.input_tokens_details.cached_tokens >= first.usage.total_tokens - 2


def test_function_is_called_and_answered(client: openai.OpenAI):
    with client.responses.stream(
        model="default",
        input="What is the weather in Paris?",
        tools=[WEATHER],
        tool_choice="required",
        temperature=0,
    ) as stream:
        pieces = [event.delta for event in stream if event.type == "response.function_call_arguments.delta"]
        first = stream.get_final_response()
    call = first.output[-1]
    assert isinstance(call, ResponseFunctionToolCall)
    assert call.name == "get_weather"
    assert "".join(pieces) == call.arguments
    assert isinstance(json.loads(call.arguments)["city"], str)
    second = client.responses.create(
        model="default",
        input=[{"type": "function_call_output", "call_id": call.call_id, "output": '{"celsius": 25}'}],
        previous_response_id=first.id,
        tools=[WEATHER],
        tool_choice="none",
        temperature=0,
        max_output_tokens=60,
    )
    assert second.output_text
