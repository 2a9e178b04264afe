"""Chat completions through the official SDK: every way it has of asking and of reading."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Annotated, Any, Literal

import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam
from pydantic import BaseModel, Field

from server.engine.thread import GATHER_S
from tests.clients.written import writing
from tests.fake_backend import FakeBackend
from tests.http_lead import Lead, serving

HELLO: list[ChatCompletionMessageParam] = [{"role": "user", "content": "hello there"}]
WARM: Any = {"model": "toy", "messages": HELLO, "temperature": 1, "seed": 7, "stop": ["q", "z"]}


class Size(BaseModel):
    unit: Literal["cm", "inch"]
    whole: bool


class Pet(BaseModel):
    kind: Literal["cat", "dog"]
    name: Annotated[str, Field(max_length=5)]
    size: Size


class Weather(BaseModel):
    city: Literal["Paris", "Rome"]
    celsius: bool


TOOL = openai.pydantic_function_tool(Weather)


def test_create_and_stream_say_the_same(client: openai.OpenAI):
    whole = client.chat.completions.create(**WARM, stream=False)
    chunks = list(client.chat.completions.create(**WARM, stream=True))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert text == whole.choices[0].message.content
    assert whole.usage
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens
    assert whole.choices[0].finish_reason == chunks[-1].choices[0].finish_reason == "stop"


def test_the_stream_helper_puts_everything_together(client: openai.OpenAI):
    whole = client.chat.completions.create(**WARM, logprobs=True, top_logprobs=3, stream=False)
    asked: Any = {**WARM, "logprobs": True, "top_logprobs": 3, "stream_options": {"include_usage": True}}
    with client.chat.completions.stream(**asked) as stream:
        events = list(stream)
        final = stream.get_final_completion()
    assert [e.delta for e in events if e.type == "content.delta"]
    assert [e.content for e in events if e.type == "content.done"] == [whole.choices[0].message.content]
    told = [entry for e in events if e.type == "logprobs.content.delta" for entry in e.content]
    known = whole.choices[0].logprobs
    assert known
    assert known.content
    assert [(t.token, t.bytes) for t in told] == [(t.token, t.bytes) for t in known.content]
    assert {len(t.top_logprobs) for t in told} == {3}
    assert [t.logprob for t in told] == pytest.approx([t.logprob for t in known.content])
    assert final.choices[0].message.content == whole.choices[0].message.content
    assert final.choices[0].logprobs
    assert final.choices[0].logprobs.content == told
    assert final.usage
    assert whole.usage
    assert final.usage.completion_tokens == whole.usage.completion_tokens


def test_several_choices_are_streamed_side_by_side(client: openai.OpenAI):
    whole = client.chat.completions.create(**WARM, n=4, stream=False)
    texts = [choice.message.content for choice in whole.choices]
    assert len(set(texts)) == 4
    streamed = [""] * 4
    for chunk in client.chat.completions.create(**WARM, n=4, stream=True):
        for choice in chunk.choices:
            streamed[choice.index] += choice.delta.content or ""
    assert streamed == texts
    with client.chat.completions.stream(**WARM, n=4) as stream:
        final = stream.get_final_completion()
    assert [choice.message.content for choice in final.choices] == texts


def test_parse_returns_what_pydantic_made_of_it(client: openai.OpenAI):
    parsed = client.chat.completions.parse(model="toy", messages=HELLO, response_format=Pet, temperature=1)
    pet = parsed.choices[0].message.parsed
    assert isinstance(pet, Pet)
    with client.chat.completions.stream(
        model="toy", messages=HELLO, response_format=Pet, temperature=0
    ) as stream:
        events = list(stream)
    done = [event.parsed for event in events if event.type == "content.done"]
    assert isinstance(done[0], Pet)
    assert [event.parsed for event in events if event.type == "content.delta"][-1] == done[0].model_dump()


def test_cut_reply_is_not_parsed(client: openai.OpenAI):
    with pytest.raises(openai.LengthFinishReasonError):
        client.chat.completions.parse(model="toy", messages=HELLO, response_format=Pet, max_tokens=3)


@pytest.fixture
def unhurried() -> Iterator[openai.OpenAI]:
    """Yield a client of a server slower than the time in which tokens are gathered."""
    with serving(FakeBackend(step_s=2 * GATHER_S[False])) as lead:
        with openai.OpenAI(base_url=f"{lead.url}/v1", api_key="none", max_retries=0) as one:
            yield one


def test_arguments_of_tools_are_streamed_in_pieces(unhurried: openai.OpenAI):
    client = unhurried
    asked: Any = {"model": "toy", "messages": HELLO, "tools": [TOOL], "parallel_tool_calls": False}
    asked["tool_choice"] = "required"
    whole = client.chat.completions.create(**asked, stream=False)
    (call,) = whole.choices[0].message.tool_calls or [None]
    assert call
    assert call.type == "function"
    Weather.model_validate_json(call.function.arguments)
    with client.chat.completions.stream(**asked) as stream:
        events = list(stream)
    pieces = [e.arguments_delta for e in events if e.type == "tool_calls.function.arguments.delta"]
    assert len(list(filter(None, pieces))) > 1
    (done,) = [e for e in events if e.type == "tool_calls.function.arguments.done"]
    assert "".join(pieces) == done.arguments == call.function.arguments
    assert isinstance(done.parsed_arguments, Weather)


def test_parse_knows_the_arguments_of_pydantic_tools(client: openai.OpenAI):
    choice: Any = {"type": "function", "function": {"name": "Weather"}}
    parsed = client.chat.completions.parse(model="toy", messages=HELLO, tools=[TOOL], tool_choice=choice)
    (call,) = parsed.choices[0].message.tool_calls or [None]
    assert call
    assert isinstance(call.function.parsed_arguments, Weather)
    assert parsed.choices[0].finish_reason == "tool_calls"


def test_sdk_reply_becomes_next_message():
    call = '<tool_call>\n{"name": "Weather", "arguments": {"city": "Rome", "celsius": true}}\n</tool_call>'
    with (
        writing(f"<think>\nhm\n</think>\nLet me see.\n{call}", "It is sunny in Rome.") as lead,
        openai.OpenAI(base_url=f"{lead.url}/v1", api_key="none", max_retries=0) as client,
    ):
        first = client.chat.completions.create(model="toy", messages=HELLO, tools=[TOOL]).choices[0]
        assert first.finish_reason == "tool_calls"
        assert first.message.content == "Let me see."
        assert first.message.model_extra
        assert first.message.model_extra["reasoning_content"].strip() == "hm"
        (made,) = first.message.tool_calls or [None]
        assert made
        history: list[Any] = [
            *HELLO,
            first.message,
            {"role": "tool", "tool_call_id": made.id, "content": json.dumps({"sky": "clear"})},
        ]
        second = client.chat.completions.create(model="toy", messages=history, tools=[TOOL]).choices[0]
        assert second.message.content == "It is sunny in Rome."
        assert f"Let me see.\n{call}<|im_end|>" in lead.prompts[1]
        assert '<tool_response>\n{"sky": "clear"}\n</tool_response>' in lead.prompts[1]


def test_content_parts_and_every_role(client: openai.OpenAI):
    messages: list[ChatCompletionMessageParam] = [
        {"role": "system", "content": [{"type": "text", "text": "be "}, {"type": "text", "text": "brief"}]},
        {"role": "developer", "content": "and kind"},
        {"role": "user", "name": "anna", "content": [{"type": "text", "text": "hi"}]},
        {"role": "assistant", "content": "hello"},
        {"role": "user", "content": ""},
    ]
    reply = client.chat.completions.create(model="toy", messages=messages, max_tokens=4, stop=None, n=None)
    assert reply.choices[0].message.role == "assistant"
    assert isinstance(reply.choices[0].message.content, str)


def test_raw_responses_and_request_ids(client: openai.OpenAI):
    raw = client.chat.completions.with_raw_response.create(**WARM, stream=False)
    assert raw.status_code == 200
    assert raw.request_id == raw.headers["x-request-id"]
    assert raw.parse()._request_id == raw.request_id  # pyright: ignore[reportPrivateUsage] - documented
    own = client.chat.completions.create(**WARM, extra_headers={"x-request-id": "mine-1"}, stream=False)
    assert own._request_id == "mine-1"  # pyright: ignore[reportPrivateUsage]
    with client.chat.completions.with_streaming_response.create(**WARM, stream=True) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = [line for line in response.iter_lines() if line]
    assert lines[-1] == "data: [DONE]"
    assert all(line.startswith("data: {") for line in lines[:-1])


def test_duos_fields_pass_the_sdk(client: openai.OpenAI):
    extra = {"top_k": 5, "speculative": False, "cache_salt": "a", "min_p": 0.1}
    reply: Any = client.chat.completions.create(**WARM, extra_body=extra, stream=False)
    assert reply.timings["predicted_n"] == reply.usage.completion_tokens
    assert reply.metrics["speculative_decoding"]["num_draft_tokens"] == 0


async def test_the_asynchronous_client(lead: Lead):
    async with openai.AsyncOpenAI(base_url=f"{lead.url}/v1", api_key="none", max_retries=0) as client:
        whole = await client.chat.completions.create(**WARM, stream=False)
        text = ""
        async for chunk in await client.chat.completions.create(**WARM, stream=True):
            text += chunk.choices[0].delta.content or ""
        assert text == whole.choices[0].message.content
        async with client.chat.completions.stream(**WARM) as stream:
            final = await stream.get_final_completion()
        assert final.choices[0].message.content == text
        pet = await client.chat.completions.parse(model="toy", messages=HELLO, response_format=Pet)
        assert isinstance(pet.choices[0].message.parsed, Pet)
