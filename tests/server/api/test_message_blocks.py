"""Blocks and tools of every type in Anthropic's Messages API: what the model reads, and what is told."""

from __future__ import annotations

import json
from typing import Any

import anthropic
import pytest

from server.api.messages.messages_as_chat import as_chat, chat_of
from server.api.messages.messages_request import MessagesRequest
from tests.http_lead import Lead
from tests.server.api.test_messages import HELLO, WEATHER, ask, post, replying, script
from tests.server.api.test_responses import prompt_of

PICTURE: dict[str, Any] = {
    "type": "image",
    "source": {"type": "base64", "media_type": "image/png", "data": "AA"},
}
USE: dict[str, Any] = {"type": "tool_use", "id": "c1", "name": "weather"}
UNSEEN = "[an image that this model cannot see: it reads text only]"
LATER: dict[str, Any] = {**WEATHER, "name": "later", "description": "found later", "defer_loading": True}
FOUND: dict[str, Any] = {"type": "tool_reference", "tool_name": "later"}


def request(**fields: Any) -> MessagesRequest:
    return MessagesRequest.model_validate({"messages": HELLO, **fields})


def said(*blocks: dict[str, Any], role: str = "assistant") -> list[dict[str, Any]]:
    """Return what these blocks of an earlier turn become."""
    turns = [*HELLO, {"role": role, "content": list(blocks)}, {"role": "assistant", "content": "So."}, *HELLO]
    return chat_of(request(messages=turns))["messages"][1:-2]


def result(*content: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": "c1", "content": list(content)}


async def test_anthropic_tool_results_keep_order():
    used: dict[str, Any] = {
        "type": "server_tool_use",
        "id": "s1",
        "name": "web_search",
        "input": {"query": "cats"},
    }
    page = {"type": "web_search_result", "title": "Cats", "url": "https://cats", "encrypted_content": "xx"}
    found = {"type": "web_search_tool_result", "tool_use_id": "s1", "content": [page]}
    call, returned, rest = said(used, found, {"type": "text", "text": "Cats purr."})
    assert call["tool_calls"][0]["function"] == {"name": "web_search", "arguments": '{"query": "cats"}'}
    assert returned == {"role": "tool", "tool_call_id": "s1", "content": "Cats\nhttps://cats"}
    assert rest == {"role": "assistant", "content": "Cats purr."}
    used = {"type": "mcp_tool_use", "id": "m1", "name": "read", "server_name": "fs", "input": {}}
    found = {"type": "mcp_tool_result", "tool_use_id": "m1", "content": [{"type": "text", "text": "abc"}]}
    call, returned = said(used, found)
    assert call["tool_calls"][0]["function"]["name"] == "fs__read"
    assert returned["content"] == "abc"


@pytest.mark.parametrize(
    ("block", "text"),
    [
        ({"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "all"}}, "all"),
        (
            {
                "type": "search_result",
                "source": "x",
                "title": "T",
                "content": [{"type": "text", "text": "b"}],
            },
            "T\nx\nb",
        ),
        (PICTURE, UNSEEN),
        (
            {"type": "container_upload", "file_id": "f"},
            "[a file that this model cannot see: it reads text only]",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else value["type"],
)
def test_blocks_of_an_earlier_turn_are_texts(block: dict[str, Any], text: str):
    assert said(block, role="user") == [{"role": "user", "content": text}]


@pytest.mark.parametrize("type", ["fallback", "mcp_tool_listing", "compaction"])
def test_blocks_without_words_leave_nothing(type: str):
    assert said({"type": type}) == []


def test_a_compaction_replaces_what_was_before():
    assert said({"type": "compaction", "content": "they met"}, {"type": "text", "text": "Go on."}) == [
        {"role": "assistant", "content": "Go on."}
    ]
    turns = [
        *HELLO,
        {"role": "assistant", "content": [{"type": "compaction", "content": "they met"}]},
        *HELLO,
    ]
    first = chat_of(request(messages=turns))["messages"][0]
    assert first == {"role": "user", "content": "What was said before, in short:\nthey met"}


@pytest.mark.parametrize(
    ("given", "read"), [(None, {}), ("", {}), ('{"a": 1}', {"a": 1}), ("ls", {"input": "ls"})]
)
def test_arguments_that_are_no_object_become_one(given: Any, read: dict[str, Any]):
    [turn] = said({"type": "tool_use", "id": "c1", "name": "f", "input": given})
    assert turn["tool_calls"][0]["function"]["arguments"] == read


async def test_picture_in_result_becomes_text():
    used: dict[str, Any] = {"type": "tool_use", "id": "c1", "name": "Read", "input": {}}
    turns: list[Any] = [
        *HELLO,
        {"role": "assistant", "content": [used]},
        {"role": "user", "content": [result(PICTURE)]},
    ]
    one = script("A cat.")
    assert (await ask(replying(one), messages=turns)).status == 200
    beside = [result({"type": "text", "text": "read"}), PICTURE]
    told = chat_of(request(messages=[*turns[:-1], {"role": "user", "content": beside}]))["messages"]
    assert [message["content"] for message in told[-2:]] == ["read", UNSEEN]


async def test_wishes_without_effect_are_told():
    source = {"type": "text", "media_type": "text/plain", "data": "It rains."}
    document = {"type": "document", "source": source, "context": "a report", "citations": {"enabled": True}}
    turns = [{"role": "user", "content": [document, {"type": "text", "text": "How is it?"}]}]
    budget = {"task_budget": {"type": "tokens", "total": 1000}}
    reply = script("Wet.")
    told = (await ask(replying(reply), messages=turns, output_config=budget)).json
    assert [warning.partition(":")[0] for warning in told["warnings"]] == [
        "output_config.task_budget",
        "messages.0.content.0.citations",
    ]
    assert "a report" in prompt_of(reply)
    assert "It rains." in prompt_of(reply)


async def test_tools_for_code_are_left_out():
    tools = [WEATHER, {**WEATHER, "name": "sum_up", "allowed_callers": ["code_execution_20250825"]}]
    both = {**WEATHER, "name": "both", "allowed_callers": ["direct", "code_execution_20250825"]}
    reply = script("Wet.")
    told = (await ask(replying(reply), tools=[*tools, both])).json
    assert [warning.partition(" is")[0] for warning in told["warnings"]] == ["tools.1: sum_up"]


@pytest.mark.parametrize("given", [[1], 3, True])
def test_input_of_any_json_is_kept(given: Any):
    turns = [*HELLO, {"role": "assistant", "content": [{**USE, "input": given}]}, *HELLO]
    [call] = chat_of(request(messages=turns))["messages"][1]["tool_calls"]
    assert call["function"]["arguments"] == {"input": given}


async def test_removed_tool_is_told():
    removal = {"type": "tool_removal", "tool": {"type": "tool_reference", "name": "weather"}}
    turns = [*HELLO, {"role": "system", "content": [removal]}]
    reply = script("Wet.")
    await ask(replying(reply), messages=turns, tools=[WEATHER])
    assert "The tool weather is not available any more" in prompt_of(reply)


def test_latest_system_words_set_the_effort():
    turns = [*HELLO, {"role": "system", "content": "Think.", "output_config": {"effort": "max"}}]
    body = {"messages": turns, "output_config": {"effort": "low"}}
    assert chat_of(MessagesRequest.model_validate(body))["reasoning_effort"] == "max"
    later = {**body, "messages": [*turns, {"role": "assistant", "content": "Yes."}, *HELLO]}
    assert chat_of(MessagesRequest.model_validate(later))["reasoning_effort"] == "low"


async def test_tools_that_cannot_run_are_left_out():
    hosted = [{"type": "web_search_20250305", "name": "web_search"}, {"type": "mcp_toolset"}]
    told = (await ask(replying(script("yes.")), tools=[*hosted, WEATHER])).json
    assert [warning.partition(" is")[0] for warning in told["warnings"]] == [
        "tools.0: web_search_20250305",
        "tools.1: mcp_toolset",
    ]
    assert [one["function"]["name"] for one in chat_of(request(tools=[*hosted, WEATHER]))["tools"]] == [
        "weather"
    ]


@pytest.mark.parametrize("type", ["bash_20250124", "text_editor_20250728", "memory_20250818"])
def test_tools_that_clients_run_are_described(type: str):
    [tool] = chat_of(request(tools=[{"type": type, "name": "its_name"}]))["tools"]
    assert tool["function"]["name"] == "its_name"
    assert "command" in tool["function"]["parameters"]["properties"]


def test_a_reference_shows_a_deferred_tool():
    tools = [WEATHER, LATER]
    first = chat_of(request(tools=tools))
    assert [one["function"]["name"] for one in first["tools"]] == ["weather"]
    call = {"type": "tool_use", "id": "c1", "name": "ToolSearch", "input": {"query": "later"}}
    turns = [*HELLO, {"role": "assistant", "content": [call]}, {"role": "user", "content": [result(FOUND)]}]
    second = chat_of(request(tools=tools, messages=turns))
    weather, later = second["tools"]
    assert weather == first["tools"][0]
    assert later["in_message"]
    shown = json.loads(second["messages"][-1]["content"])
    assert shown["function"]["description"] == "found later"
    chosen = chat_of(request(tools=tools, tool_choice={"type": "tool", "name": "later"}))
    assert [one["function"]["name"] for one in chosen["tools"]] == ["weather", "later"]


def test_deferred_tools_appear_when_found():
    search = {"type": "tool_search_tool_regex_20251119", "name": "tool_search_tool_regex"}
    offered = as_chat(request(tools=[search, LATER]))
    assert [one["function"]["name"] for one in offered.chat["tools"]] == ["later"]


def test_sdk_continues_a_kept_thread(lead: Lead):
    with anthropic.Anthropic(base_url=lead.url, api_key="none", max_retries=0) as client:
        asked: Any = {"model": "toy", "max_tokens": 20}
        system: Any = "be brief"
        create: Any = client.messages.create
        first = create(**asked, messages=HELLO, system=system, extra_body={"thread": {"type": "create"}})
        more: list[Any] = [{"role": "user", "content": "and then"}]
        goes_on = {"thread": {"type": "continue", "previous_message_id": first.id}}
        second = create(**asked, messages=more, extra_body=goes_on)
        whole = [*HELLO, {"role": "assistant", "content": first.content[0].text}, *more]
        spelled = create(**asked, messages=whole, system=system)
        assert second.content == spelled.content
        total = [one.usage.input_tokens + one.usage.cache_read_input_tokens for one in (second, spelled)]
        assert total[0] == total[1]
        assert post(lead, f"/v1/responses/{first.id}").status_code in (404, 405)
        with pytest.raises(anthropic.NotFoundError, match="send the whole conversation"):
            create(
                **asked,
                messages=more,
                extra_body={"thread": {**goes_on["thread"], "previous_message_id": "x"}},
            )
