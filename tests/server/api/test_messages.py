"""Anthropic's Messages API, over scripted replies and over the toy."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import httpx
import pytest

from server.api import delivery
from server.api.access import Access
from server.api.messages.messages_as_chat import chat_of
from server.api.messages.messages_request import MessagesRequest
from server.api.middleware import Edge
from server.api.services import Services
from server.engine.events import Failed, Finished, Started, Stats
from server.engine.request import GenerationRequest
from server.errors import BackendError, BusyError
from server.lead.listening import ClientPolicy
from server.text.template import ChatTemplate
from tests.contract.contract import validate
from tests.fake_backend import FakeBackend, FakeModel
from tests.http_lead import Lead, serving
from tests.server.api.scripted import N_CTX, Call, Script, Scripts, services
from tests.server.api.test_responses import step
from tests.templates import THINKING

HELLO: list[Any] = [{"role": "user", "content": "hello there"}]
WEATHER: dict[str, Any] = {
    "name": "weather",
    "description": "of a city",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'
INPUT = {"city": "Rome"}


def script(*texts: str, reason: Any = "stop") -> Script:
    n = sum(map(len, texts))
    return Script(Started(5, 2), *map(step, texts), Finished(reason, Stats(5, 2, n, n, 1.0, 2.0)))


def filling() -> Script:
    """Return a reply that ends at the end of the context."""
    n_prompt = N_CTX - 4
    stats = Stats(n_prompt, 2, 4, 4, 1.0, 2.0)
    return Script(Started(n_prompt, 2), step("yes."), Finished("length", stats))


class Replies(Scripts):
    """Answers requests, not the evaluations made for the next turn."""

    def submit(self, request: GenerationRequest) -> Script:
        if request.precompute:
            raise BusyError("not now")
        return super().submit(request)


def replying(*scripts: Script) -> Services:
    return replace(services(Replies(*scripts)), template=ChatTemplate(THINKING))


async def ask(state: Services, path: str = "/v1/messages", method: str = "POST", **body: Any) -> Call:
    one = Call(state, path=path, method=method, body={"messages": HELLO, "max_tokens": 1000, **body})
    await asyncio.wait_for(one.run(), 10)
    return one


def events_of(content: bytes) -> list[dict[str, Any]]:
    """Return the events of a stream, each checked to have the name of its type."""
    *frames, rest = content.decode().split("\n\n")
    assert rest == ""
    events: list[dict[str, Any]] = []
    for frame in frames:
        name, data = frame.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    return events


def chat(**body: Any) -> dict[str, Any]:
    """Return the chat completion that a request is turned into."""
    return chat_of(MessagesRequest.model_validate({"messages": HELLO, **body}))


async def test_stream_has_one_block_each():
    text = "<think>\nHm.", " Rome?\n</think>\n\nLet me", " look.", CALL
    *events, delta, stop = events_of(
        (await ask(replying(script(*text)), tools=[WEATHER], stream=True)).content
    )
    assert [event["type"] for event in events[:2]] == ["message_start", "ping"]
    message = events[0]["message"]
    assert (message["content"], message["stop_reason"]) == ([], None)
    assert message["usage"] | {"output_tokens_details": None} == {
        "input_tokens": 3,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 2,
        "output_tokens": 0,
        "output_tokens_details": None,
    }
    begun = [event["content_block"] for event in events if event["type"] == "content_block_start"]
    assert [block["type"] for block in begun] == ["thinking", "text", "tool_use"]
    assert (begun[2]["name"], begun[2]["input"]) == ("weather", {})
    told: dict[int, str] = {}
    kinds: dict[int, list[str]] = {}
    for event in events[2:]:
        kinds.setdefault(event["index"], []).append(event["type"])
        given = event.get("delta", {})
        told[event["index"]] = told.get(event["index"], "") + "".join(
            given.get(name, "") for name in ("thinking", "text", "partial_json")
        )
    assert told == {0: "Hm. Rome?", 1: "Let me look.", 2: json.dumps(INPUT)}
    for one in kinds.values():
        assert (one[0], one[-1]) == ("content_block_start", "content_block_stop")
    signed = [e for e in events if e.get("delta", {}).get("type") == "signature_delta"]
    assert [(event["index"], bool(event["delta"]["signature"])) for event in signed] == [(0, True)]
    assert delta["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}
    assert delta["usage"]["output_tokens"] == sum(map(len, text))
    assert stop == {"type": "message_stop"}


async def test_whole_message_equals_its_stream():
    reply = script("<think>\nHm.\n</think>\n\nLet me look." + CALL + CALL)
    body = (await ask(replying(reply), tools=[WEATHER], model="claude-opus-4-8")).json
    validate("AssistantMessage", body)
    assert (body["type"], body["role"], body["model"]) == ("message", "assistant", "claude-opus-4-8")
    thoughts, text, *calls = body["content"]
    assert (thoughts["type"], thoughts["thinking"], bool(thoughts["signature"])) == ("thinking", "Hm.", True)
    assert text == {"type": "text", "text": "Let me look."}
    assert [(call["type"], call["name"], call["input"]) for call in calls] == [
        ("tool_use", "weather", INPUT)
    ] * 2
    assert calls[0]["id"] != calls[1]["id"]
    assert body["usage"]["output_tokens_details"]["thinking_tokens"] > 0


@pytest.mark.parametrize(
    ("reply", "asked", "reason", "string"),
    [
        (script("yes."), {}, "end_turn", None),
        (script("yes.", reason="length"), {"max_tokens": 4}, "max_tokens", None),
        (script("yes.", reason="length"), {}, "max_tokens", None),  # the server's own limit
        (filling(), {}, "model_context_window_exceeded", None),
        (script("one two"), {"stop_sequences": ["x", " t"]}, "stop_sequence", " t"),
        (script("<think>\nno"), {"stop_sequences": ["no"]}, "end_turn", None),
        (script("<think>\nno</think>or no"), {"stop_sequences": ["no"]}, "stop_sequence", "no"),
        (script(CALL), {"tools": [WEATHER]}, "tool_use", None),
        (script(CALL[:50], reason="length"), {"tools": [WEATHER], "max_tokens": 50}, "max_tokens", None),
    ],
)
async def test_why_a_reply_has_ended(reply: Script, asked: Any, reason: str, string: str | None):
    whole = (await ask(replying(reply), **asked)).json
    assert (whole["stop_reason"], whole["stop_sequence"]) == (reason, string)


async def test_omitted_thoughts_travel_in_signature():
    hidden: Any = {"thinking": {"type": "adaptive", "display": "omitted"}}
    reply = "<think>\nHm.", " Rome?\n</think>\n\nLet me look."
    thoughts, text = (await ask(replying(script(*reply)), **hidden)).json["content"]
    assert (thoughts["thinking"], text["text"]) == ("", "Let me look.")
    assert "Hm." not in thoughts["signature"]
    [_, told] = chat(messages=[*HELLO, {"role": "assistant", "content": [thoughts, text]}])["messages"]
    assert told["reasoning_content"] == "Hm. Rome?"
    events = events_of((await ask(replying(script(*reply)), stream=True, **hidden)).content)
    deltas = [event["delta"] for event in events if event.get("index") == 0 and "delta" in event]
    assert deltas == [{"type": "signature_delta", "signature": thoughts["signature"]}]


@pytest.mark.parametrize("signature", ["unsigned", "", "thoughts:!", "thoughts:/w==", "Eo8C"])
def test_a_signature_of_others_holds_nothing(signature: str):
    block = {"type": "thinking", "thinking": "", "signature": signature}
    [_, told] = chat(messages=[*HELLO, {"role": "assistant", "content": [block]}])["messages"]
    assert told == {"role": "assistant", "content": ""}


@pytest.mark.parametrize("asked", [False, True])
async def test_timings_come_on_request(asked: bool):
    more: Any = {"timings_per_token": True} if asked else {}
    whole = (await ask(replying(script("yes.")), **more)).json
    *_, delta, _ = events_of((await ask(replying(script("yes.")), stream=True, **more)).content)
    assert {"timings" in whole, "metrics" in whole, "timings" in delta, "metrics" in delta} == {asked}


async def test_cut_call_has_empty_input():
    body = (await ask(replying(script(CALL[:58], reason="length")), tools=[WEATHER], max_tokens=58)).json
    [call] = body["content"]
    assert (call["name"], call["input"]) == ("weather", {})


def test_system_blocks_join_without_billing():
    assert chat(system="be brief")["messages"][0] == {"role": "system", "content": "be brief"}
    billed = {"type": "text", "text": "x-anthropic-billing-header: cc_version=1; cch=0a1b2;"}
    brief = {"type": "text", "text": "be brief", "cache_control": {"type": "ephemeral"}}
    kind = {"type": "text", "text": "be kind"}
    [system, *_] = chat(system=[billed, brief, kind])["messages"]
    assert [part["text"] for part in system["content"]] == ["be brief", "be kind"]
    assert chat(system=[billed])["messages"] == HELLO


def test_turns_keep_calls_and_results():
    call = {"type": "tool_use", "id": "c1", "name": "weather", "input": INPUT}
    returned = {"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": "sunny"}]}
    failed = {"type": "tool_result", "tool_use_id": "c2", "content": "no such city", "is_error": True}
    nothing = {"type": "tool_result", "tool_use_id": "c3"}
    names = [{"type": "tool_reference", "tool_name": name} for name in ("weather", "time")]
    found = {"type": "tool_result", "tool_use_id": "c4", "content": names}
    turns = [
        *HELLO,
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Hm.", "signature": "abc"},
                {"type": "redacted_thinking", "data": "xyz"},
                {"type": "text", "text": "Let me look."},
                call,
            ],
        },
        {"role": "user", "content": [returned, failed, nothing, found, {"type": "text", "text": "well?"}]},
        {"role": "system", "content": "be brief"},
    ]
    _, reply, *results, user, system = chat(messages=turns)["messages"]
    function = {"name": "weather", "arguments": INPUT}
    assert reply == {
        "role": "assistant",
        "reasoning_content": "Hm.",
        "content": "Let me look.",
        "tool_calls": [{"id": "c1", "type": "function", "function": function}],
    }
    assert [(one["role"], one["tool_call_id"], one["content"]) for one in results] == [
        ("tool", "c1", "sunny"),
        ("tool", "c2", "Error: no such city"),
        ("tool", "c3", ""),
        ("tool", "c4", [{"type": "text", "text": "weather"}, {"type": "text", "text": "time"}]),
    ]
    assert user == {"role": "user", "content": "well?"}
    assert system == {"role": "system", "content": "be brief"}


@pytest.mark.parametrize(
    ("given", "made"),
    [
        ({"tool_choice": {"type": "auto"}}, {"tool_choice": "auto"}),
        ({"tool_choice": {"type": "any"}}, {"tool_choice": "required"}),
        ({"tool_choice": {"type": "none"}}, {"tool_choice": "none"}),
        (
            {"tool_choice": {"type": "tool", "name": "weather", "disable_parallel_tool_use": True}},
            {
                "tool_choice": {"type": "function", "function": {"name": "weather"}},
                "parallel_tool_calls": False,
            },
        ),
        (
            {"thinking": {"type": "enabled", "budget_tokens": 2048}},
            {"reasoning_budget": 2048, "chat_template_kwargs": {"enable_thinking": True}},
        ),
        ({"thinking": {"type": "adaptive"}}, {"chat_template_kwargs": {"enable_thinking": True}}),
        (
            {"thinking": {"type": "disabled"}},
            {"reasoning_budget": 0, "chat_template_kwargs": {"enable_thinking": False}},
        ),
        ({"output_config": {"effort": "low"}}, {"reasoning_effort": "low"}),
        (
            {"output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}}},
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "object"}}}},
        ),
        ({"stop_sequences": ["a"], "max_tokens": 7}, {"stop": ["a"], "max_completion_tokens": 7}),
        ({"temperature": 0.5, "top_p": 0.9, "top_k": 5}, {"temperature": 0.5, "top_p": 0.9, "top_k": 5}),
        ({"metadata": {"user_id": "me"}, "context_management": {"edits": []}, "betas": ["x"]}, {}),
    ],
)
def test_fields_map_to_chat_fields(given: dict[str, Any], made: dict[str, Any]):
    assert chat(**given) == {"messages": HELLO, **made}


async def test_failures_have_anthropic_types():
    call = await ask(services(Script(refusal=BusyError("later"))))
    assert (call.status, call.json["error"]["type"]) == (429, "rate_limit_error")
    assert call.header["retry-after"] == "1"
    call = await ask(services(Script(refusal=BusyError("ending", draining=True))))
    assert (call.status, call.json["error"]["type"]) == (503, "overloaded_error")
    call = await ask(services(Script(refusal=RuntimeError("a defect"))))
    assert (call.status, call.json["error"]["type"]) == (500, "api_error")
    broken = Script(Started(5, 2), step("yes"), Failed(BackendError("broken")))
    *_, last = events_of((await ask(replying(broken), stream=True)).content)
    assert (last["type"], last["error"]) == ("error", {"type": "api_error", "message": "broken"})
    assert last["request_id"]


async def test_long_prompt_uses_known_words():
    long = "x" * (N_CTX + 1)
    call = await ask(replying(), messages=[{"role": "user", "content": long}])
    assert call.status == 400
    assert call.json["error"]["message"].startswith("prompt is too long: ")
    assert f"> {N_CTX} maximum" in call.json["error"]["message"]


async def test_pings_keep_silent_streams_open(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(delivery, "KEEP_ALIVE_S", 0.001)
    slow = Script(Started(5, 2))
    call = Call(services(slow), "/v1/messages", {"messages": HELLO, "max_tokens": 9, "stream": True})
    running = asyncio.create_task(call.run())
    ping = b'event: ping\ndata: {"type":"ping"}\n\n'
    await call.until_sent(ping * 3)
    slow.tell(Finished("stop", Stats(5, 2, 0, 0, 1.0, 2.0)))
    await asyncio.wait_for(running, 10)
    assert {event["type"] for event in events_of(call.content)} >= {"ping", "message_stop"}


def post(lead: Lead, path: str = "/v1/messages", **body: Any) -> httpx.Response:
    return httpx.post(lead.url + path, json={"messages": HELLO, "max_tokens": 20, **body}, timeout=20)


def test_message_equals_a_chat_completion(lead: Lead):
    hot: dict[str, Any] = {"seed": 1, "temperature": 1.0, "ignore_eos": True, "cache_salt": "alone"}
    whole = httpx.post(
        f"{lead.url}/v1/chat/completions", json={"messages": HELLO, "max_tokens": 20, **hot}
    ).json()
    lead.until_idle()
    body = post(lead, **hot).json()
    assert body["content"] == [{"type": "text", "text": whole["choices"][0]["message"]["content"]}]
    usage = body["usage"]
    assert usage["cache_read_input_tokens"] > 0
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] == whole["usage"]["prompt_tokens"]
    assert usage["output_tokens"] == 20
    counted = post(lead, "/v1/messages/count_tokens").json()
    assert counted == {"input_tokens": whole["usage"]["prompt_tokens"]}


def test_tools_count_and_are_called(lead: Lead):
    bare = post(lead, "/v1/messages/count_tokens").json()["input_tokens"]
    assert post(lead, "/v1/messages/count_tokens", tools=[WEATHER]).json()["input_tokens"] > bare
    city = {"type": "object", "properties": {"city": {"const": "Rome"}}, "required": ["city"]}
    tools = [{**WEATHER, "input_schema": {**city, "additionalProperties": False}}]
    must = {"type": "any", "disable_parallel_tool_use": True}
    body = post(lead, tools=tools, tool_choice=must, max_tokens=200, temperature=1.0, seed=4).json()
    assert body["stop_reason"] == "tool_use"
    [call] = body["content"]
    assert (call["name"], call["input"]) == ("weather", INPUT)


def test_both_key_headers_work():
    door = ClientPolicy(Edge(access=Access(["secret"])), None, grace_s=0)
    with serving(FakeBackend(FakeModel(seed=3)), door=door) as lead:
        url, body = f"{lead.url}/v1/messages", {"messages": HELLO, "max_tokens": 2}
        for headers in ({"x-api-key": "secret"}, {"authorization": "Bearer secret"}):
            version = {"anthropic-version": "2023-06-01"}
            assert httpx.post(url, json=body, headers={**headers, **version}).status_code == 200
        for headers in ({}, {"x-api-key": "wrong"}):
            refused = httpx.post(url, json=body, headers=headers)
            assert refused.status_code == 401
            assert refused.json()["error"]["type"] == "authentication_error"
