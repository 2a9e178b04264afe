"""The Responses API through the official SDK, over the toy and over scripted replies."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Annotated, Any, Literal

import httpx
import openai
import pytest
from openai.types.responses import ResponseCompletedEvent, ResponseTextDeltaEvent
from pydantic import BaseModel, Field

from server.api.services import Services
from server.engine.events import Committed, Failed, Finished, Started, Stats
from server.engine.request import GenerationRequest
from server.errors import BackendError, BusyError
from server.sampling.logprobs import TokenLogprobs
from server.text.template import ChatTemplate
from tests.contract.contract import validate
from tests.fake_backend import FakeVocabulary
from tests.http_lead import Lead
from tests.server.api.scripted import Call, Script, Scripts, services
from tests.templates import QWEN_CODER

STARTED = Started(5, 2)
HELLO = "hello there"
THINKING = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function.name }}{{ c.function.arguments }}</tool_call>"
    "{% endfor %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
WEATHER: dict[str, Any] = {
    "type": "function",
    "name": "weather",
    "description": "of a city",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    "strict": False,
}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'


def post(lead: Lead, path: str = "/v1/responses", **body: Any) -> httpx.Response:
    return httpx.post(lead.url + path, json={"input": HELLO, **body}, timeout=20)


def answered(lead: Lead, **body: Any) -> dict[str, Any]:
    response = post(lead, **body)
    assert response.status_code == 200, response.text
    validate("Response", response.json())
    return response.json()


def events_of(content: bytes) -> list[dict[str, Any]]:
    """Return the events of a stream, checked against the contract, framing and numbers included."""
    frames = content.decode().split("\n\n")
    assert frames[-1] == ""
    events: list[dict[str, Any]] = []
    for number, frame in enumerate(frames[:-1]):
        name, data = frame.split("\n")
        event = json.loads(data.removeprefix("data: "))
        validate("ResponseEvent", event)
        assert name == f"event: {event['type']}"
        assert event["sequence_number"] == number
        events.append(event)
    return events


def step(text: str, *, with_logprobs: bool = False) -> Committed:
    tokens = tuple(text.encode())
    logprobs = tuple(TokenLogprobs(t, -0.5, ((t, -0.5),)) for t in tokens) if with_logprobs else ()
    return Committed(tokens, (None,) * len(tokens), logprobs=logprobs)


def script(*texts: str, reason: Any = "stop") -> Script:
    n = sum(map(len, texts))
    return Script(STARTED, *map(step, texts), Finished(reason, Stats(5, 2, n, n, 1.0, 2.0)))


class Replies(Scripts):
    """Answers requests, not the evaluations made for the next turn."""

    def submit(self, request: GenerationRequest) -> Script:
        if request.precompute:
            raise BusyError("not now")
        return super().submit(request)


def serving(*scripts: Script, template: str | None = None) -> Services:
    return replace(services(Replies(*scripts)), template=ChatTemplate(template))


async def ask(state: Services, path: str = "/v1/responses", method: str = "POST", **body: Any) -> Call:
    one = Call(state, path=path, method=method, body={"input": HELLO, **body})
    await asyncio.wait_for(one.run(), 10)
    return one


def prompt_of(script: Script) -> str:
    vocabulary = FakeVocabulary()
    return b"".join(vocabulary.piece(token, special=True) for token in script.requests[0].prompt).decode()


def test_response_equals_a_chat_completion(lead: Lead):
    hot: dict[str, Any] = {"seed": 1, "temperature": 1.0, "ignore_eos": True}
    chat = {"messages": [{"role": "user", "content": HELLO}], "max_tokens": 20, **hot}
    whole = httpx.post(f"{lead.url}/v1/chat/completions", json=chat).json()
    body = answered(lead, max_output_tokens=20, **hot, metadata={"a": "b"}, user="me")
    [item] = body["output"]
    assert item["content"][0]["text"] == whole["choices"][0]["message"]["content"]
    assert body["status"] == item["status"] == "incomplete"
    assert body["incomplete_details"] == {"reason": "max_output_tokens"}
    assert body["usage"]["output_tokens"] == body["timings"]["predicted_n"] == 20
    assert body["usage"]["input_tokens"] == whole["usage"]["prompt_tokens"]
    assert (body["metadata"], body["temperature"], body["max_output_tokens"]) == ({"a": "b"}, 1.0, 20)
    events = events_of(post(lead, max_output_tokens=20, **hot, stream=True).content)
    assert events[-1]["type"] == "response.incomplete"
    text = "".join(e["delta"] for e in events if e["type"] == "response.output_text.delta")
    assert text == item["content"][0]["text"] == events[-1]["response"]["output"][0]["content"][0]["text"]


def test_the_sdk_drives_it(client: openai.OpenAI):
    whole = client.responses.create(model="toy", input=HELLO, temperature=0)
    assert whole.status == "completed"
    assert whole.usage is not None
    with client.responses.stream(model="toy", input=HELLO, temperature=0) as stream:
        events = list(stream)
        final = stream.get_final_response()
    assert final.output_text == whole.output_text
    assert isinstance(events[-1], ResponseCompletedEvent)
    deltas = [event for event in events if isinstance(event, ResponseTextDeltaEvent)]
    assert "".join(event.delta for event in deltas) == whole.output_text
    assert final.usage is not None
    assert final.usage.output_tokens == whole.usage.output_tokens
    plain = list(client.responses.create(model="toy", input=HELLO, temperature=0, stream=True))
    assert [event.type for event in plain][:2] == ["response.created", "response.in_progress"]
    assert plain[-1].type == "response.completed"


def test_a_conversation_goes_on_by_its_id(client: openai.OpenAI, lead: Lead):
    first = client.responses.create(model="toy", input="a riddle", instructions="be brief", temperature=0)
    lead.until_idle()
    second = client.responses.create(
        model="toy",
        input="and the answer",
        previous_response_id=first.id,
        instructions="be brief",
        temperature=0,
    )
    assert first.usage is not None
    assert second.usage is not None
    assert second.usage.input_tokens_details.cached_tokens >= first.usage.total_tokens - 2
    history: list[Any] = [
        {"role": "user", "content": "a riddle"},
        *[item.to_dict() for item in first.output],
        {"role": "user", "content": [{"type": "input_text", "text": "and the answer"}]},
    ]
    again = client.responses.create(model="toy", input=history, instructions="be brief", temperature=0)
    assert again.output_text == second.output_text
    assert again.usage is not None
    assert again.usage.input_tokens == second.usage.input_tokens
    without = client.responses.create(
        model="toy", input="and the answer", previous_response_id=first.id, temperature=0
    )
    assert without.usage is not None
    assert without.usage.input_tokens < second.usage.input_tokens


def test_errors_are_those_of_the_sdk(client: openai.OpenAI):
    with pytest.raises(openai.NotFoundError) as caught:
        client.responses.create(model="gpt-9", input=HELLO)
    assert caught.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as long:
        client.responses.create(model="toy", input="x" * 5000)
    assert long.value.code == "context_length_exceeded"


class Pet(BaseModel):
    kind: Literal["cat", "dog"]
    age: Annotated[int, Field(ge=0, le=30)]


def test_a_form_is_parsed_by_the_sdk(client: openai.OpenAI):
    parsed = client.responses.parse(model="toy", input=HELLO, text_format=Pet, temperature=1)
    assert isinstance(parsed.output_parsed, Pet)
    with client.responses.stream(model="toy", input=HELLO, text_format=Pet, temperature=1) as stream:
        final = stream.get_final_response()
    assert isinstance(final.output_parsed, Pet)
    assert json.loads(final.output_text) == final.output_parsed.model_dump()


@pytest.mark.parametrize(
    "choice",
    [
        "required",
        {"type": "function", "name": "weather"},
        {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "weather"}]},
    ],
    ids=str,
)
def test_sdk_streams_a_required_call(client: openai.OpenAI, choice: Any):
    city = {"type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}}, "required": ["city"]}
    tool: Any = {**WEATHER, "parameters": {**city, "additionalProperties": False}}
    other: Any = {**tool, "name": "other"}
    options: Any = {"tools": [other, tool] if choice != "required" else [tool], "tool_choice": choice}
    with client.responses.stream(model="toy", input=HELLO, parallel_tool_calls=False, **options) as stream:
        pieces = [event.delta for event in stream if event.type == "response.function_call_arguments.delta"]
        final = stream.get_final_response()
    [call] = final.output
    assert call.type == "function_call"
    assert (call.name, call.status) == ("weather", "completed")
    assert "".join(pieces) == call.arguments
    assert json.loads(call.arguments)["city"] in ("Rome", "Oslo")


async def test_a_call_and_what_it_returned():
    scripts = script("Let me see. ", CALL[:30], CALL[30:]), script("It is warm.")
    state = serving(*scripts, template=THINKING)
    first = await ask(state, tools=[WEATHER], stream=True)
    events = events_of(first.content)
    done = events[-1]["response"]
    assert [item["type"] for item in done["output"]] == ["message", "function_call"]
    call = done["output"][1]
    assert (call["name"], json.loads(call["arguments"])) == ("weather", {"city": "Rome"})
    pieces = [e["delta"] for e in events if e["type"] == "response.function_call_arguments.delta"]
    assert "".join(pieces) == call["arguments"]
    assert done["tools"] == [WEATHER]
    returned = {"type": "function_call_output", "call_id": call["call_id"], "output": "25 degrees"}
    second = await ask(state, input=[returned], previous_response_id=done["id"], tools=[WEATHER])
    validate("Response", second.json)
    assert second.json["output"][0]["content"][0]["text"] == "It is warm."
    prompt = prompt_of(scripts[1])
    assert (
        prompt.index("hello there")
        < prompt.index("Let me see.<tool_call>weather")
        < prompt.index("25 degrees")
    )


async def test_items_of_one_turn_merge():
    one = script("ok")
    items: list[dict[str, Any]] = [
        {"type": "message", "role": "developer", "content": "be kind"},
        {"role": "user", "content": "so?"},
        {
            "type": "reasoning",
            "id": "rs_1",
            "summary": [],
            "content": [{"type": "reasoning_text", "text": "hm"}],
        },
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I look."}]},
        {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"},
        {"type": "function_call", "call_id": "c2", "name": "g", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "one"}]},
        {"type": "function_call_output", "call_id": "c2", "output": "two"},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "aha"}]},
        {"role": "assistant", "content": "done"},
        {"role": "user", "content": "thanks"},
    ]
    assert (await ask(serving(one, template=THINKING), input=items, instructions="listen")).status == 200
    said = [part.split("<|im_end|>")[0] for part in prompt_of(one).split("<|im_start|>")[1:]]
    assert said == [
        "system\nlisten",
        "system\nbe kind",
        "user\nso?",
        "assistant\n<think>hm</think>I look.<tool_call>f{}</tool_call><tool_call>g{}</tool_call>",
        "tool\none",
        "tool\ntwo",
        "assistant\n<think>aha</think>done",
        "user\nthanks",
        "assistant\n",
    ]


async def test_a_refusal_of_the_assistant_is_text():
    one = script("ok")
    refused = {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}
    items = [{"role": "user", "content": "so?"}, refused, {"role": "user", "content": "why?"}]
    assert (await ask(serving(one), input=items)).status == 200
    assert "assistant\nno<|im_end|>" in prompt_of(one)


async def test_cut_call_stays_in_history():
    one = script("ok")
    call = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": ""}
    items = [call, {"role": "user", "content": "so?"}]
    assert (await ask(serving(one, template=QWEN_CODER), input=items)).status == 200
    assert "<function=f>\n</function>" in prompt_of(one)


async def test_thoughts_are_a_counted_item():
    scripts = script("<think>", "two", " cities</think>", "Rome"), script("yes")
    state = serving(*scripts, template=THINKING)
    one = await ask(state, stream=True)
    events = events_of(one.content)
    done = events[-1]["response"]
    assert [item["type"] for item in done["output"]] == ["reasoning", "message"]
    assert done["output"][0]["content"] == [{"type": "reasoning_text", "text": "two cities"}]
    assert done["output"][1]["content"][0]["text"] == "Rome"
    assert done["usage"]["output_tokens_details"]["reasoning_tokens"] == len("<think>two cities</think>")
    thoughts = [e["delta"] for e in events if e["type"] == "response.reasoning_text.delta"]
    assert "".join(thoughts) == "two cities"
    await ask(state, previous_response_id=done["id"])
    assert "<think>two cities</think>Rome" in prompt_of(scripts[1])


@pytest.mark.parametrize("stream", [False, True])
async def test_logprobs_when_included(stream: bool):
    end = Finished("stop", Stats(5, 2, 3, 3, 1.0, 2.0))
    one = Script(STARTED, step("ab", with_logprobs=True), step("c", with_logprobs=True), end)
    asked = await ask(serving(one), include=["message.output_text.logprobs"], top_logprobs=1, stream=stream)
    body = events_of(asked.content)[-1]["response"] if stream else asked.json
    validate("Response", body)
    [part] = body["output"][0]["content"]
    assert [entry["token"] for entry in part["logprobs"]] == ["a", "b", "c"]
    assert one.requests[0].n_logprobs == 1


async def test_a_failure_is_the_last_event():
    state = serving(Script(STARTED, step("ab"), Failed(BackendError("no more"))))
    events = events_of((await ask(state, stream=True)).content)
    assert events[-1]["type"] == "response.failed"
    response = events[-1]["response"]
    assert (response["status"], response["error"]["message"]) == ("failed", "no more")
    assert response["output"][0]["content"][0]["text"] == "ab"
    assert await state.replies.get("", response["id"]) is None
    whole = await ask(serving(Script(STARTED, Failed(BackendError("no more")))))
    assert whole.status == 500
    validate("Error", whole.json)


async def test_leaving_client_stores_nothing():
    one = Script(STARTED, step("ab"))
    state = serving(one)
    call = Call(state, path="/v1/responses", body={"input": HELLO, "stream": True})
    running = asyncio.ensure_future(call.run())
    await call.until_sent(b'"delta":"ab"')
    call.gone.set()
    await asyncio.wait_for(running, 10)
    assert one.cancels
    id = json.loads(call.content.split(b"data: ", 2)[1].split(b"\n")[0])["response"]["id"]
    assert await state.replies.get("", id) is None


async def test_truncation_auto_outgrows_the_context():
    scripts = script("a"), script("b")
    state = serving(*scripts)
    for asked in ("auto", "disabled"):
        await ask(state, truncation=asked, n_keep=7)
    assert [one.requests[0].n_keep for one in scripts] == [7, None]
