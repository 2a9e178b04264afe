"""What other servers, clients and languages write into a conversation is read or left out: it stays there."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import httpx
import pytest

from server.text.room import Room
from server.text.template import ChatTemplate
from tests.fake_backend import FakeBackend, FakeModel
from tests.http_lead import Lead, serving
from tests.server.api.scripted import Call, Script, services
from tests.server.api.test_odd_inputs import HELLO, post, refused
from tests.templates import REASONING

PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
A_CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
AGAIN = {"role": "user", "content": "and now?"}


def prompt_of(*messages: dict[str, Any], **fields: Any) -> str:
    """Return the prompt of these messages, by a template that shows thoughts."""
    state = replace(services(Script()), template=ChatTemplate(REASONING))
    one = Call(state, "/apply-template", body={"messages": messages, **fields})
    asyncio.run(asyncio.wait_for(one.run(), 10))
    assert one.status == 200, one.content
    return one.json["prompt"]


@pytest.mark.parametrize(
    "thoughts",
    [
        {"reasoning": "I see."},
        {"reasoning_content": "", "reasoning": "I see."},
        {"reasoning_details": [{"type": "reasoning.text", "text": "I see."}]},
        {"reasoning": None, "reasoning_details": [{"type": "reasoning.summary", "summary": "I see."}]},
        {"thinking_blocks": [{"type": "thinking", "thinking": "I see.", "signature": "x"}]},
        {"content": [{"type": "thinking", "thinking": "I see."}, {"type": "text", "text": "Hi"}]},
        {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "I see."}]}]},
    ],
    ids=lambda given: ",".join(given),
)
def test_thoughts_are_read_under_all_names(thoughts: dict[str, Any]):
    reply = {"role": "assistant", "content": "", "tool_calls": [A_CALL]}
    result = {"role": "tool", "tool_call_id": "c1", "content": "it rains"}
    plain = {**reply, "content": "Hi" if "Hi" in str(thoughts) else "", "reasoning_content": "I see."}
    shown = prompt_of(*HELLO, {**reply, **thoughts}, result)
    assert shown == prompt_of(*HELLO, plain, result)
    assert "I see." in shown


@pytest.mark.parametrize(
    "thoughts",
    [
        {"reasoning": {"effort": "high"}},
        {"reasoning_details": [{"type": "reasoning.encrypted", "data": "x"}]},
        {"reasoning": 5},
    ],
    ids=str,
)
def test_thoughts_without_text_are_none(thoughts: dict[str, Any]):
    reply = {"role": "assistant", "content": "Hi"}
    assert prompt_of(*HELLO, {**reply, **thoughts}, AGAIN) == prompt_of(*HELLO, reply, AGAIN)


@pytest.fixture(scope="module")
def small():
    with serving(FakeBackend(FakeModel(seed=3), n_ctx=4096)) as lead:
        yield lead


def test_pictures_of_tools_become_texts(small: Lead):
    calls = {"role": "assistant", "content": None, "tool_calls": [A_CALL]}
    result = {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "seen"}, PICTURE]}
    shown = httpx.post(f"{small.url}/apply-template", json={"messages": [*HELLO, calls, result]}).json()
    assert "seen\n[an image that this model cannot see: it reads text only]" in shown["prompt"]
    assert post(small, {"messages": [*HELLO, calls, result], "max_tokens": 2}).status_code == 200


def test_earlier_pictures_become_texts(small: Lead):
    before = [{"role": "user", "content": [PICTURE]}, {"role": "assistant", "content": "nice"}]
    assert post(small, {"messages": [*before, AGAIN], "max_tokens": 2}).status_code == 200
    assert post(small, {"messages": [before[0], AGAIN], "max_tokens": 2}).status_code == 200


def test_fresh_pictures_are_refused_once(small: Lead):
    asked = {"role": "user", "content": [{"type": "text", "text": "what is it?"}, PICTURE]}
    for behind in ([], [{"role": "system", "content": "be brief"}]):
        error = refused(post(small, {"messages": [*HELLO, asked, *behind]}))
        assert error["param"] == "messages.1.content.1.type"
        assert "`image_url`" in error["message"]


@pytest.mark.parametrize("arguments", [None, "", "null", {}, [], 5], ids=repr)
def test_arguments_of_calls_may_be_anything(small: Lead, arguments: Any):
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    messages = [
        *HELLO,
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "x"},
    ]
    assert post(small, {"messages": messages, "max_tokens": 2}).status_code == 200


def test_results_may_have_the_old_role(small: Lead):
    messages = [*HELLO, {"role": "function", "name": "f", "content": "42"}]
    shown = httpx.post(f"{small.url}/apply-template", json={"messages": messages}).json()["prompt"]
    assert "42" in shown
    assert "function" not in shown


@pytest.mark.parametrize("parameters", ["x", 5, ["x"], {"type": "array"}], ids=repr)
def test_uncalled_tools_may_have_wrong_parameters(small: Lead, parameters: Any):
    tools = [{"type": "function", "function": {"name": "f", "parameters": parameters}}]
    body = {"messages": HELLO, "tools": tools, "max_tokens": 2}
    assert post(small, {**body, "tool_choice": "none"}).status_code == 200
    assert post(small, body).status_code == 400


def test_an_empty_list_is_no_parameters(small: Lead):
    tools: list[Any] = [{"type": "function", "function": {"name": "f", "parameters": []}}]
    assert post(small, {"messages": HELLO, "tools": tools, "max_tokens": 2}).status_code == 200


def test_many_stop_strings_are_taken(small: Lead):
    assert (
        post(small, {"messages": HELLO, "stop": [f"#{i}" for i in range(200)], "max_tokens": 2}).status_code
        == 200
    )


LONG = [{"role": "user", "content": "word " * (2 << 20)}]


@pytest.fixture(scope="module")
def bounded():
    """Return a template that knows how much the context takes, as in a lead."""
    backend = FakeBackend(FakeModel(seed=3), n_ctx=256)
    with serving(backend) as lead:
        room = Room(backend.n_ctx, backend.vocab.longest)
        object.__setattr__(lead.services, "template", ChatTemplate(None, room=room))
        yield lead


def test_a_text_of_megabytes_is_too_long(bounded: Lead):
    error = refused(post(bounded, {"messages": LONG}))
    assert error["code"] == "context_length_exceeded"
    answer = httpx.post(f"{bounded.url}/v1/messages", json={"messages": LONG, "max_tokens": 5}, timeout=30)
    assert answer.status_code == 400
    assert answer.json()["error"]["message"].startswith("prompt is too long: ")


@pytest.mark.parametrize(
    "path", ["/v1/chat/completions/input_tokens", "/v1/messages/count_tokens", "/v1/responses/input_tokens"]
)
def test_prompts_that_do_not_fit_are_counted(bounded: Lead, path: str):
    text = "word " * 1000
    body = {"input": text} if "responses" in path else {"messages": [{"role": "user", "content": text}] * 3}
    answer = httpx.post(bounded.url + path, json=body, timeout=30)
    assert answer.status_code == 200, answer.text
    assert answer.json()["input_tokens"] > len(text)


def test_a_count_is_that_of_the_prompt(bounded: Lead):
    counted = httpx.post(f"{bounded.url}/v1/chat/completions/input_tokens", json={"messages": HELLO}).json()
    reply = post(bounded, {"messages": HELLO, "max_tokens": 1}).json()
    assert counted["input_tokens"] == reply["usage"]["prompt_tokens"]


def test_invalid_body_stays_invalid(small: Lead):
    answer = httpx.post(f"{small.url}/v1/chat/completions", content=json.dumps({"messages": 5}))
    assert answer.status_code == 400


def test_a_call_under_its_former_name():
    called = {"name": "look", "arguments": '{"at": "it"}'}
    now = {"role": "assistant", "tool_calls": [{**A_CALL, "function": called}]}
    before = {"role": "assistant", "content": None, "function_call": called}
    result = {"role": "function", "name": "look", "content": "it rains"}
    shown = prompt_of(*HELLO, before, result, AGAIN)
    assert shown == prompt_of(*HELLO, now, {"role": "tool", "content": "it rains"}, AGAIN)
    assert '{"at": "it"}' in shown
