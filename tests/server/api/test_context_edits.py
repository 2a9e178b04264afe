"""What Anthropic's context_management and compaction leave of a long conversation, and what is told of it."""

from __future__ import annotations

from typing import Any

import pytest

from server.api.chat.summary import INSTRUCTION
from server.api.messages.context_edits import CLEARED, ClearThinking, ClearToolUses, CompactEdit, is_due
from tests.contract.contract import validate
from tests.server.api.scripted import N_CTX
from tests.server.api.test_messages import ask, events_of, replying, script
from tests.server.api.test_responses import prompt_of

ANSWERS = ("rain", "hail", "snow", "wind")


def use(i: int, name: str = "look") -> dict[str, Any]:
    return {"type": "tool_use", "id": f"c{i}", "name": name, "input": {"day": f"day{i}"}}


def used(*names: str) -> list[Any]:
    """Return a conversation in which tools of these names were used, with ANSWERS, then a question."""
    turns: list[Any] = [{"role": "user", "content": "How was it?"}]
    for i, name in enumerate(names):
        turns.append({"role": "assistant", "content": [use(i, name)]})
        result = {"type": "tool_result", "tool_use_id": f"c{i}", "content": ANSWERS[i] * 30}
        turns.append({"role": "user", "content": [result]})
    return turns


def clearing(**more: Any) -> dict[str, Any]:
    trigger = {"type": "input_tokens", "value": 10}
    keep = {"type": "tool_uses", "value": 1}
    edit = {"type": "clear_tool_uses_20250919", "trigger": trigger, "keep": keep, **more}
    return {"edits": [edit]}


async def cleared(*names: str, **more: Any) -> tuple[str, list[Any]]:
    """Return the prompt, and the edits that are told."""
    reply = script("Fine.")
    body = (await ask(replying(reply), messages=used(*names), context_management=clearing(**more))).json
    validate("AssistantMessage", body)
    return prompt_of(reply), body["context_management"]["applied_edits"]


async def test_old_results_are_cleared():
    prompt, [edit] = await cleared("look", "look", "look")
    assert [answer * 30 in prompt for answer in ANSWERS[:3]] == [False, False, True]
    assert prompt.count(CLEARED) == 2
    assert "day0" in prompt
    assert (edit["type"], edit["cleared_tool_uses"]) == ("clear_tool_uses_20250919", 2)
    whole = prompt.replace(CLEARED, "rain" * 30, 1).replace(CLEARED, "hail" * 30, 1)
    assert edit["cleared_input_tokens"] == len(whole) - len(prompt)


@pytest.mark.parametrize(
    "more",
    [
        {"keep": {"type": "tool_uses", "value": 3}},
        {"keep": None},
        {"trigger": {"type": "tool_uses", "value": 3}},
        {"trigger": None},
        {"clear_at_least": {"type": "input_tokens", "value": 1000}},
        {"exclude_tools": ["look"]},
    ],
)
async def test_nothing_is_cleared_too_early(more: dict[str, Any]):
    prompt, edits = await cleared("look", "look", "look", **more)
    assert not edits
    assert CLEARED not in prompt


async def test_excluded_tool_keeps_its_results():
    prompt, [edit] = await cleared("find", "look", "look", exclude_tools=["find"])
    assert [answer * 30 in prompt for answer in ANSWERS[:3]] == [True, False, True]
    assert edit["cleared_tool_uses"] == 1


@pytest.mark.parametrize(
    ("inputs", "left"), [(True, [False, False, True]), (["find"], [False, True, True]), (False, [True] * 3)]
)
async def test_cleared_inputs_are_empty(inputs: Any, left: list[bool]):
    prompt, _ = await cleared("find", "look", "look", clear_tool_inputs=inputs)
    assert [f"day{i}" in prompt for i in range(3)] == left


def test_absent_trigger_follows_the_context():
    edits = [ClearToolUses(type="clear_tool_uses_20250919"), CompactEdit(type="compact_20260112")]
    assert [is_due(edit, 120_000, [], 1 << 20) for edit in edits] == [True, False]
    for edit in edits:
        assert not is_due(edit, 900, [], 1000)
        assert is_due(edit, 901, [], 1000)


def test_thoughts_of_old_turns_go():
    one, two, three = (
        {"role": "assistant", "content": "Yes.", "reasoning_content": f"thought {i}"} for i in range(3)
    )
    user, result = {"role": "user", "content": "?"}, {"role": "tool", "content": "!", "tool_call_id": "c"}
    messages = [user, one, user, two, result, three]

    def left(keep: Any) -> tuple[list[str], int]:
        edit = ClearThinking.model_validate({"type": "clear_thinking_20251015", "keep": keep})
        edited, n = edit.apply(messages)
        return [str(message.get("reasoning_content")) for message in edited if "Yes." in message.values()], n

    assert left(None) == (["None", "thought 1", "thought 2"], 1)
    assert left({"type": "thinking_turns", "value": 2}) == (["thought 0", "thought 1", "thought 2"], 0)
    for keep in ("all", {"type": "all"}):
        assert left(keep)[1] == 0


@pytest.mark.parametrize(
    ("edit", "place"),
    [
        ({"type": "clear_all"}, "context_management.edits.0"),
        ({"type": "clear_thinking_20251015", "keep": "some"}, "context_management.edits.0.keep"),
        (
            {"type": "clear_tool_uses_20250919", "trigger": {"type": "hours", "value": 1}},
            "context_management.edits.0.trigger",
        ),
    ],
)
async def test_unknown_edit_is_named(edit: dict[str, Any], place: str):
    called = await ask(replying(), context_management={"edits": [edit]})
    assert called.status == 400
    assert called.json["error"]["message"].startswith(place)


async def test_cleared_prompt_is_counted():
    state, messages = replying(), used("look", "look", "look")
    path = "/v1/messages/count_tokens"
    bare = (await ask(state, path, messages=messages)).json["input_tokens"]
    told = (await ask(state, path, messages=messages, context_management=clearing())).json
    assert told["context_management"] == {"original_input_tokens": bare}
    assert told["input_tokens"] == bare - 2 * (4 * 30 - len(CLEARED))


@pytest.mark.parametrize("stream", [False, True])
async def test_summary_stands_for_long_conversations(stream: bool):
    summary, reply = script("It rained."), script("Fine.")
    edit = {"type": "compact_20260112", "trigger": {"type": "input_tokens", "value": 50}}
    called = await ask(
        replying(summary, reply),
        messages=used("look"),
        context_management={"edits": [{**edit, "instructions": "Name the days."}]},
        stream=stream,
    )
    assert f"{INSTRUCTION}\nName the days." in prompt_of(summary)
    assert "rainrain" in prompt_of(summary)
    assert "in short:\nIt rained." in prompt_of(reply)
    assert "rainrain" not in prompt_of(reply)
    if not stream:
        validate("AssistantMessage", called.json)
        block, text = called.json["content"]
        assert (called.json["stop_reason"], text["text"]) == ("end_turn", "Fine.")
        assert block == {"type": "compaction", "content": "It rained."}
        return
    events = events_of(called.content)
    for event in events:
        validate("MessagesEvent", event)
    begun = [(e["index"], e["content_block"]["type"]) for e in events if e["type"] == "content_block_start"]
    assert begun == [(0, "compaction"), (1, "text")]
    assert {"type": "compaction_delta", "content": "It rained."} in [e.get("delta") for e in events]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("how", ["asked", "paused"])
async def test_summary_alone_on_request(how: str, stream: bool):
    summary = script("<think>Hm.</think>It rained.")
    edit = {"type": "compact_20260112", "trigger": {"type": "input_tokens", "value": 50}}
    fields: dict[str, Any] = {
        "asked": {"compaction": {"type": "summarize", "instructions": "Be short."}},
        "paused": {"context_management": {"edits": [{**edit, "pause_after_compaction": True}]}},
    }[how]
    called = await ask(replying(summary), messages=used("look"), stream=stream, **fields)
    assert ("Be short." if how == "asked" else INSTRUCTION) in prompt_of(summary)
    assert (INSTRUCTION in prompt_of(summary)) is (how == "paused")
    if not stream:
        assert called.json["content"] == [{"type": "compaction", "content": "It rained."}]
        assert called.json["stop_reason"] == "compaction"
        return
    events = events_of(called.content)
    deltas = [event["delta"] for event in events if "delta" in event]
    assert deltas[0] == {"type": "compaction_delta", "content": "It rained."}
    assert deltas[-1]["stop_reason"] == "compaction"


async def test_short_conversation_needs_no_summary():
    reply = script("Fine.")
    edits = {"edits": [{"type": "compact_20260112"}]}
    body = (await ask(replying(reply), messages=used("look"), context_management=edits)).json
    assert [block["type"] for block in body["content"]] == ["text"]
    assert body["context_management"] == {"applied_edits": []}
    assert len(prompt_of(reply)) < N_CTX * 9 // 10


async def test_cleared_system_words_go():
    reminder = {"role": "system", "content": "Mind the time.", "clear_at": "next_user_message"}
    lasting = {"role": "system", "content": "Mind the gap.", "clear_at": "never"}
    user, said = {"role": "user", "content": "go on"}, {"role": "assistant", "content": "Yes."}
    first, second = script("Yes."), script("Yes.")
    state = replying(first, second)
    await ask(state, messages=[user, reminder, lasting])
    await ask(state, messages=[user, reminder, lasting, said, user])
    assert ["Mind the time." in prompt_of(one) for one in (first, second)] == [True, False]
    assert "Mind the gap." in prompt_of(second)


async def test_two_ways_of_compacting_are_refused():
    called = await ask(replying(), compaction={"type": "summarize"}, context_management={"edits": []})
    assert called.status == 400
    assert called.json["error"]["message"].startswith("compaction: not with context_management")
