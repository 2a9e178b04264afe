"""Tools of every type in the Responses API: what the model is shown, and how its calls are told."""

from __future__ import annotations

import json
import logging
import re
from typing import Any

import pytest

from tests.http_lead import Lead
from tests.server.api.test_responses import (
    THINKING,
    WEATHER,
    ask,
    events_of,
    post,
    prompt_of,
    script,
    serving,
)

PATCH: dict[str, Any] = {
    "type": "custom",
    "name": "apply_patch",
    "description": "Edits files.",
    "format": {"type": "grammar", "syntax": "lark", "definition": 'start: "a" | "b\\"c"'},
}
FILES: dict[str, Any] = {
    "type": "namespace",
    "name": "mcp__fs",
    "description": "Files.",
    "tools": [{**WEATHER, "name": "read"}, {**PATCH, "name": "edit", "format": None}],
}
HOSTED: list[dict[str, Any]] = [
    {"type": "web_search", "external_web_access": False},
    {"type": "image_generation"},
    {"type": "code_interpreter", "container": {"type": "auto"}},
    {"type": "mcp", "server_label": "s", "server_url": "https://example.org"},
    {"type": "local_shell"},
    {"type": "shell"},
    {"type": "shell", "environment": {"type": "local", "skills": []}},
    {"type": "apply_patch"},
    {"type": "computer_use_preview", "display_width": 1, "display_height": 1, "environment": "linux"},
    {"type": "file_search", "vector_store_ids": ["vs_1"]},
    {"type": "tool_search"},
]
LATER: dict[str, Any] = {**WEATHER, "name": "later", "description": "found later", "defer_loading": True}
SEARCH: dict[str, Any] = {"type": "tool_search", "execution": "client", "description": "Finds tools."}


SHOWING = (
    "{% if tools %}<tools>{% for t in tools %}{{ t | tojson }}{% endfor %}</tools>{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>\n"
    '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments }}}\n</tool_call>{% endfor %}'
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""Shows tools in front, and calls as the model writes them."""


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


async def test_tools_that_cannot_run_are_left_out(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.WARNING, "duo.api")
    one = script("hello")
    told = (await ask(serving(one, template=SHOWING), tools=[*HOSTED, WEATHER])).json
    assert [tool["name"] for tool in told["tools"]] == ["weather"]
    assert len(told["warnings"]) == len(HOSTED)
    for i, tool in enumerate(HOSTED):
        assert told["warnings"][i].startswith(f"tools.{i}: {tool['type']} is left out")
    prompt = prompt_of(one)
    assert "weather" in prompt
    assert "web_search" not in prompt
    caplog.clear()
    await ask(serving(script("hello")), tools=HOSTED)
    assert not caplog.records  # the log has told of each once


async def test_namespace_returns_in_its_form():
    reply = call("mcp__fs__read", city="a.txt")
    one, again = script(reply), script("done")
    state = serving(one, again, template=THINKING)
    told = (await ask(state, tools=[FILES])).json
    [item] = told["output"]
    assert (item["type"], item["namespace"], item["name"]) == ("function_call", "mcp__fs", "read")
    assert told["tools"][0]["name"] == "mcp__fs"
    result = {"type": "function_call_output", "call_id": item["call_id"], "output": "text"}
    await ask(state, input=[{"role": "user", "content": "hello there"}, item, result], tools=[FILES])
    assert "<tool_call>mcp__fs__read" in prompt_of(again)


async def test_a_custom_tool_is_streamed_as_text():
    reply = call("apply_patch", input='*** "one"\n\\two é\U0001f600')
    streamed = await ask(serving(script(reply)), tools=[PATCH], stream=True)
    events = events_of(streamed.content)
    deltas = [e["delta"] for e in events if e["type"] == "response.custom_tool_call_input.delta"]
    assert "".join(deltas) == '*** "one"\n\\two é\U0001f600'
    [done] = [e for e in events if e["type"] == "response.custom_tool_call_input.done"]
    [item] = events[-1]["response"]["output"]
    assert item["input"] == done["input"] == "".join(deltas)
    assert (item["type"], item["name"], item["status"]) == ("custom_tool_call", "apply_patch", "completed")
    added = next(e["item"] for e in events if e["type"] == "response.output_item.added")
    assert (added["type"], added["input"]) == ("custom_tool_call", "")


async def test_tools_for_code_are_left_out():
    tools = [
        {**one, "name": f"t{i}", "allowed_callers": ["programmatic"]}
        for i, one in enumerate((WEATHER, PATCH))
    ]
    told = (
        await ask(serving(script("Wet.")), tools=[*tools, {**WEATHER, "allowed_callers": ["direct"]}])
    ).json
    assert [warning.partition(" is")[0] for warning in told["warnings"]] == ["tools.0: t0", "tools.1: t1"]


async def test_a_custom_call_is_read_back():
    one = script("done")
    turns = [
        {"role": "user", "content": "change it"},
        {"type": "custom_tool_call", "call_id": "c1", "name": "apply_patch", "input": '"x"\n'},
        {"type": "custom_tool_call_output", "call_id": "c1", "output": "patched"},
    ]
    await ask(serving(one, template=THINKING), input=turns, tools=[PATCH])
    prompt = prompt_of(one)
    assert '<tool_call>apply_patch{"input": "\\"x\\"\\n"}</tool_call>' in prompt
    assert "tool\npatched" in prompt


async def test_namespaced_custom_call_names_both():
    told = (await ask(serving(script(call("mcp__fs__edit", input="x"))), tools=[FILES])).json
    [item] = told["output"]
    assert (item["type"], item["namespace"], item["name"]) == ("custom_tool_call", "mcp__fs", "edit")


async def test_search_shows_deferred_tools():
    one, two = script(call("tool_search", query="later")), script(call("later", city="Rome"))
    state = serving(one, two, template=SHOWING)
    told = (await ask(state, tools=[WEATHER, SEARCH, LATER])).json
    [item] = told["output"]
    assert (item["type"], item["execution"], item["arguments"]) == (
        "tool_search_call",
        "client",
        {"query": "later"},
    )
    first = prompt_of(one)
    assert "found later" not in first
    found = {"type": "tool_search_output", "call_id": item["call_id"], "tools": [LATER]}
    history = [{"role": "user", "content": "hello there"}, item, found]
    told = (await ask(state, input=history, tools=[WEATHER, SEARCH, LATER])).json
    second = prompt_of(two)
    assert second.startswith(first)  # so that all of it is in the cache
    assert "found later" in second[len(first) :]
    assert [one["name"] for one in told["output"]] == ["later"]


async def test_deferred_tools_are_shown_where_nobody_searches():
    one = script("hello")
    await ask(serving(one, template=SHOWING), tools=[{"type": "tool_search"}, LATER])
    assert "found later" in prompt_of(one)


async def test_added_tools_can_be_called():
    one = script(call("later", city="Rome"))
    added = {"type": "additional_tools", "role": "developer", "tools": [LATER]}
    turns = [added, {"role": "user", "content": "hello"}]
    told = (await ask(serving(one, template=THINKING), input=turns)).json
    assert [item["name"] for item in told["output"]] == ["later"]
    assert "found later" in prompt_of(one)


@pytest.mark.parametrize("kind", ["function", "custom"])
async def test_tools_of_one_name_are_refused(kind: str):
    twice = {**PATCH, "type": kind, "name": "weather", "format": None}
    told = (await ask(serving(), tools=[{"type": "web_search"}, WEATHER, twice])).json
    assert told["error"]["param"] == "tools.2.name"


def test_chosen_tool_overrides_format(lead: Lead):
    chosen = {"type": "function", "name": "weather"}
    form = {"format": {"type": "json_schema", "name": "n", "schema": {"enum": ["yes"]}}}
    told = post(lead, tools=[WEATHER], tool_choice=chosen, text=form, max_output_tokens=300).json()
    assert [item["type"] for item in told["output"]] == ["function_call"]


@pytest.mark.parametrize(("syntax", "definition"), [("lark", 'start: "ab" "c"+'), ("regex", "abc{1,9}")])
def test_custom_call_follows_its_grammar(lead: Lead, syntax: str, definition: str):
    form = {"type": "grammar", "syntax": syntax, "definition": definition}
    asked: dict[str, Any] = {"tools": [{**PATCH, "format": form}], "max_output_tokens": 300, "temperature": 1}
    told = post(lead, tool_choice={"type": "custom", "name": "apply_patch"}, seed=1, **asked).json()
    [item] = told["output"]
    assert item["type"] == "custom_tool_call"
    assert re.fullmatch("abc+", item["input"])
    bad = {**form, "definition": "start: ("}
    refused = post(lead, tools=[{**PATCH, "format": bad}])
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "tools.0.format.definition")
