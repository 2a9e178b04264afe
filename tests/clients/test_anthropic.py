"""Anthropic's Python SDK against /v1/messages."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import pytest
from anthropic.types import Message, TextBlock, ThinkingBlock, ToolUseBlock

from server.api.access import Access
from server.api.middleware import Edge
from server.errors import BackendError, BusyError
from server.lead.listening import ClientPolicy
from tests.clients.written import Written, writing
from tests.fake_backend import FakeBackend, FakeModel
from tests.http_lead import Lead, serving

HELLO: list[Any] = [{"role": "user", "content": "hello there"}]
MODEL = "claude-opus-4-8"
WEATHER: Any = {
    "name": "weather",
    "description": "of a city",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'


@pytest.fixture
def claude(lead: Lead) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=lead.url, api_key="none", max_retries=0, timeout=30) as one:
        yield one
        lead.until_idle()


def sdk(lead: Written) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=lead.url, api_key="none", max_retries=0, timeout=30)


def ask(client: anthropic.Anthropic, messages: list[Any] = HELLO, **more: Any) -> Message:
    asked: Any = {"model": MODEL, "max_tokens": 400, "messages": messages, **more}
    return client.messages.create(**asked, stream=False)


def test_a_stream_accumulates_to_the_whole_message(claude: anthropic.Anthropic):
    asked: Any = {"model": MODEL, "max_tokens": 20, "messages": HELLO}
    whole = claude.messages.create(**asked, stream=False)
    assert (whole.stop_reason, whole.model) == ("max_tokens", MODEL)
    with claude.messages.stream(**asked) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert whole.content == [TextBlock(type="text", text=text)]
    assert [block.to_dict() for block in final.content] == [block.to_dict() for block in whole.content]
    assert (final.stop_reason, final.usage.output_tokens) == ("max_tokens", 20)
    kinds = [event.type for event in claude.messages.create(**asked, stream=True)]
    assert (kinds[0], kinds[-1]) == ("message_start", "message_stop")


def test_tokens_are_counted_as_they_are_used(claude: anthropic.Anthropic):
    asked: Any = {"messages": HELLO, "system": "be brief", "tools": [WEATHER]}
    counted = claude.messages.count_tokens(model=MODEL, **asked)
    first = ask(claude, **asked).usage
    again = ask(claude, **asked).usage
    for usage in (first, again):
        assert usage.input_tokens + (usage.cache_read_input_tokens or 0) == counted.input_tokens
    assert again.cache_read_input_tokens == counted.input_tokens - 1


def test_summary_is_accumulated_and_sent_back():
    edit: Any = {"type": "compact_20260112", "trigger": {"type": "input_tokens", "value": 10}}
    with writing("It rained.", "Fine.", "Yes.") as lead, sdk(lead) as client:
        asked: Any = {"model": MODEL, "max_tokens": 400, "context_management": {"edits": [edit]}}
        with client.beta.messages.stream(messages=HELLO, **asked) as stream:
            told = stream.get_final_message()
        assert [block.type for block in told.content] == ["compaction", "text"]
        assert told.context_management
        assert told.context_management.applied_edits == []
        again: Any = [*HELLO, {"role": "assistant", "content": told.content}, *HELLO]
        client.beta.messages.create(model=MODEL, max_tokens=400, messages=again)
        assert "It rained." in lead.prompts[-1]
        assert lead.prompts[-1].count("hello there") == 1


def test_thoughts_and_calls_round_trip():
    replies = "<think>\nHm.\n</think>\n\nLet me look." + CALL, "Sunny.", "Sunny."
    with writing(*replies) as lead, sdk(lead) as client:
        with client.messages.stream(
            model=MODEL,
            max_tokens=400,
            messages=HELLO,
            tools=[WEATHER],
            thinking={"type": "enabled", "budget_tokens": 1024},
        ) as stream:
            kinds = [event.type for event in stream]
            said = stream.get_final_message()
        assert {"thinking", "signature", "text", "input_json"} <= set(kinds)
        assert said.stop_reason == "tool_use"
        thoughts, text, call = said.content
        assert isinstance(thoughts, ThinkingBlock)
        assert isinstance(text, TextBlock)
        assert isinstance(call, ToolUseBlock)
        assert (thoughts.thinking, text.text, call.name) == ("Hm.", "Let me look.", "weather")
        assert call.input == {"city": "Rome"}
        sunny: Any = {"type": "tool_result", "tool_use_id": call.id, "content": "sunny"}
        turns: list[Any] = [
            *HELLO,
            {"role": "assistant", "content": said.content},
            {"role": "user", "content": [sunny]},
        ]
        assert ask(client, turns, tools=[WEATHER]).content == [TextBlock(type="text", text="Sunny.")]
        turns[-1]["content"] = [{**sunny, "content": [{"type": "text", "text": "no"}], "is_error": True}]
        ask(client, turns, tools=[WEATHER])
        _, second, third = lead.prompts
    assert '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>' in second
    assert "<tool_response>\nsunny\n</tool_response>" in second
    assert "<tool_response>\nError: no\n</tool_response>" in third


def test_why_a_reply_has_ended():
    with writing("yes.", "one two", CALL) as lead, sdk(lead) as client:
        assert ask(client).stop_reason == "end_turn"
        stopped = ask(client, stop_sequences=[" two"])
        assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", " two")
        assert stopped.content == [TextBlock(type="text", text="one")]
        assert ask(client, tools=[WEATHER]).stop_reason == "tool_use"


def test_a_form_is_kept(claude: anthropic.Anthropic):
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
    closed = {**schema, "additionalProperties": False}
    said = ask(claude, output_config={"format": {"type": "json_schema", "schema": closed}})
    [block] = said.content
    assert isinstance(block, TextBlock)
    assert isinstance(json.loads(block.text)["ok"], bool)


def test_errors_are_those_of_the_sdk(claude: anthropic.Anthropic):
    image: Any = {"type": "image", "source": {"type": "url", "url": "x"}}
    with pytest.raises(anthropic.BadRequestError, match="`image`: this model reads text only") as refused:
        ask(claude, [{"role": "user", "content": [image]}])
    assert refused.value.request_id
    with pytest.raises(anthropic.BadRequestError, match="prompt is too long"):
        ask(claude, [{"role": "user", "content": "x" * 5000}])
    with pytest.raises(anthropic.NotFoundError):
        claude.messages.batches.list()


def test_failures_are_those_of_the_sdk():
    replies = BusyError("later"), BackendError("broken"), ("yes", BackendError("broken"))
    with writing(*replies) as lead, sdk(lead) as client:
        with pytest.raises(anthropic.RateLimitError):
            ask(client)
        with pytest.raises(anthropic.InternalServerError):
            ask(client)
        with client.messages.stream(model=MODEL, max_tokens=9, messages=HELLO) as stream:
            with pytest.raises(anthropic.APIStatusError, match="broken"):
                stream.get_final_message()


def test_keys_are_the_sdks():
    door = ClientPolicy(Edge(access=Access(["secret"])), None, grace_s=0)
    with serving(FakeBackend(FakeModel(seed=3)), door=door) as lead:
        ways: list[Any] = [{"api_key": "secret"}, {"auth_token": "secret"}]
        for how in ways:
            with anthropic.Anthropic(base_url=lead.url, max_retries=0, **how) as client:
                assert ask(client).usage.output_tokens
        with anthropic.Anthropic(base_url=lead.url, api_key="wrong", max_retries=0) as client:
            with pytest.raises(anthropic.AuthenticationError):
                ask(client)
        lead.until_idle()


def test_models_are_listed_in_its_form(claude: anthropic.Anthropic):
    [model] = claude.models.list()
    assert (model.id, model.type, model.lifecycle) == ("toy", "model", "active")
    assert model.created_at.tzinfo is not None
    assert claude.models.retrieve("default") == model
    with pytest.raises(anthropic.NotFoundError):
        claude.models.retrieve("other")
