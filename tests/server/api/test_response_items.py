"""Input items of every type in the Responses API: what the model reads of them."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from server.api.sealed import encode_thoughts, sealed_summary
from tests.http_lead import Lead
from tests.server.api.test_responses import HELLO, THINKING, ask, events_of, post, prompt_of, script, serving

USER: dict[str, Any] = {"role": "user", "content": "look"}
PICTURE: dict[str, Any] = {"type": "input_image", "image_url": "data:image/png;base64,AAAA"}
UNSEEN = "[an image that this model cannot see: it reads text only]"


def call_of(type: str, **fields: Any) -> dict[str, Any]:
    return {"type": type, "id": "i1", "call_id": "c1", "status": "completed", **fields}


async def read(*items: dict[str, Any], **body: Any) -> str:
    """Return the prompt that the model reads."""
    one = script("ok")
    called = await ask(serving(one, template=THINKING), input=[USER, *items, USER], **body)
    assert called.status == 200, called.content
    return prompt_of(one)


CARRYING: list[tuple[list[Any], str]] = [
    ([call_of("local_shell_call", action={"command": ["ls"]})], 'local_shell{"command": ["ls"]}'),
    ([call_of("shell_call", action={"commands": ["ls"]})], 'shell{"commands": ["ls"]}'),
    ([call_of("apply_patch_call", operation={"path": "a"})], 'apply_patch{"path": "a"}'),
    ([call_of("tool_search_call", arguments={"query": "q"})], 'tool_search{"query": "q"}'),
    ([call_of("mcp_call", server_label="s", name="f", arguments="{}", output="out")], "s__f{}"),
    ([call_of("mcp_call", server_label="s", name="f", arguments="{}", output="out")], "tool\nout"),
    ([call_of("code_interpreter_call", code="1+1", outputs=[{"type": "logs", "logs": "2"}])], "1+1"),
    ([call_of("program", code="x()")], 'program{"code": "x()"}'),
    ([{"type": "local_shell_call_output", "id": "c1", "output": "a.txt"}], "tool\na.txt"),
    (
        [
            call_of(
                "shell_call_output",
                output=[{"stdout": "a.txt", "stderr": "", "outcome": {"type": "exit"}}],
            )
        ],
        "tool\na.txt",
    ),
    ([call_of("apply_patch_call_output", output="patched")], "tool\npatched"),
    (
        [{"type": "agent_message", "author": "a", "content": [{"type": "input_text", "text": "go left"}]}],
        "user\ngo left",
    ),
    ([{"type": "compaction", "encrypted_content": sealed_summary("all done")}], "in short:\nall done"),
    ([{"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm."}]}], "<think>Hm.</think>"),
    (
        [{"type": "reasoning", "summary": [], "encrypted_content": encode_thoughts("Hm.")}],
        "<think>Hm.</think>",
    ),
    (
        [
            {
                "type": "reasoning",
                "content": None,
                "summary": None,
                "encrypted_content": encode_thoughts("Hm."),
            }
        ],
        "<think>Hm.</think>",
    ),
]


@pytest.mark.parametrize(
    ("items", "said"), CARRYING, ids=lambda value: value if isinstance(value, str) else value[0]["type"]
)
async def test_items_that_carry_text_are_read(items: list[dict[str, Any]], said: str):
    assert said in await read(*items)


@pytest.mark.parametrize(
    "item",
    [
        call_of("web_search_call", action={"type": "search", "query": "q"}),
        call_of("image_generation_call", result="AAAA"),
        {"type": "compaction", "encrypted_content": "of another server"},
        {"type": "reasoning", "summary": []},
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "of another server"},
        {"type": "mcp_list_tools", "id": "1", "server_label": "s", "tools": []},
        {"type": "configuration_update"},
    ],
    ids=lambda item: item["type"],
)
async def test_items_that_carry_none_leave_nothing(item: dict[str, Any]):
    another = {"role": "user", "content": "again"}
    assert await read(item, another) == await read(another)


async def test_unknown_item_is_marked_omitted():
    told = (await ask(serving(script("ok")), input=[USER, {"type": "ghost_snapshot", "id": "g"}])).json
    assert told["warnings"] == ["input.1: items of the type ghost_snapshot are left out"]


@pytest.mark.parametrize("kind", ["function_call", "custom_tool_call"])
async def test_picture_in_result_becomes_text(kind: str):
    body = {"arguments": "{}"} if kind == "function_call" else {"input": ""}
    result = {"type": f"{kind}_output", "call_id": "c1", "output": [PICTURE]}
    prompt = await read(call_of(kind, name="view_image", **body), result)
    assert f"tool\n{UNSEEN}" in prompt


async def test_earlier_picture_becomes_text():
    seen = {"role": "user", "content": [{"type": "input_text", "text": "this"}, PICTURE]}
    answer = {"role": "assistant", "content": "a cat"}
    assert f"this\n{UNSEEN}" in await read(seen, answer, USER)


async def test_a_new_picture_is_refused():
    told = await ask(serving(), input=[USER, {"role": "user", "content": [PICTURE]}])
    assert told.status == 400
    assert told.json["error"]["param"] == "input.1.content.0.type"
    assert "reads text only" in told.json["error"]["message"]


def test_an_update_replaces_effort_and_format(lead: Lead):
    form = {"type": "json_schema", "name": "n", "schema": {"enum": ["yes"]}}
    update = {"type": "configuration_update", "reasoning": {"effort": "low"}, "text": {"format": form}}
    told = post(lead, input=[USER, update, USER], reasoning={"effort": "high"}).json()
    assert told["reasoning"]["effort"] == "low"
    assert told["text"]["format"]["name"] == "n"
    assert told["output"][0]["content"][0]["text"] == '"yes"'


def test_the_sdk_refers_to_stored_items(client: openai.OpenAI, lead: Lead):
    first = client.responses.create(model="toy", input=HELLO, temperature=0)
    turns: Any = [
        {"role": "user", "content": HELLO},
        {"type": "item_reference", "id": first.output[0].id},
        {"role": "user", "content": "and then"},
    ]
    by_reference = client.responses.create(model="toy", input=turns, temperature=0)
    turns[1] = first.output[0].to_dict()
    spelled = client.responses.create(model="toy", input=turns, temperature=0)
    assert by_reference.output_text == spelled.output_text
    assert by_reference.usage
    assert spelled.usage
    assert by_reference.usage.input_tokens == spelled.usage.input_tokens
    listed = client.responses.input_items.list(by_reference.id)
    assert [item.type for item in listed.data] == ["message"] * 3
    for salt in ({}, {"cache_salt": "another"}):
        unknown = first.output[0].id if salt else "msg_unknown"
        refused = post(lead, input=[{"id": unknown}, *turns], **salt)
        assert refused.status_code == 404
        assert refused.json()["error"]["message"] == f"Item with id '{unknown}' not found."


def test_the_sdk_lists_input_in_pages(client: openai.OpenAI):
    first = client.responses.create(model="toy", input="one", temperature=0)
    second = client.responses.create(model="toy", input="two", previous_response_id=first.id, temperature=0)
    page = client.responses.input_items.list(second.id, limit=1)
    assert [one.to_dict()["content"] for one in page.data] == [[{"type": "input_text", "text": "two"}]]
    everything = list(client.responses.input_items.list(second.id, limit=1))
    assert [item.id for item in everything][1] == first.output[0].id
    assert len(everything) == 3
    ascending = client.responses.input_items.list(second.id, order="asc")
    assert [item.id for item in ascending.data] == [item.id for item in reversed(everything)]
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.input_items.list(second.id, limit=0)
    assert caught.value.param == "limit"
    with pytest.raises(openai.NotFoundError):
        client.responses.input_items.list("resp_unknown")


async def test_thoughts_are_sealed_and_summarised():
    thinking = "<think>Let me see.</think>Yes."
    state = serving(script(thinking), template=THINKING)
    told = await ask(
        state,
        stream=True,
        store=False,
        include=["reasoning.encrypted_content"],
        reasoning={"summary": "auto"},
    )
    events = events_of(told.content)
    kinds = [event["type"].removeprefix("response.") for event in events]
    assert kinds[2:7] == [
        "output_item.added",
        "reasoning_summary_part.added",
        "reasoning_summary_text.delta",
        "reasoning_summary_text.done",
        "reasoning_summary_part.done",
    ]
    thoughts: dict[str, Any] = events[-1]["response"]["output"][0]
    assert thoughts["summary"] == [{"type": "summary_text", "text": "Let me see."}]
    assert thoughts["content"] == []
    assert events[-1]["response"]["reasoning"]["summary"] == "auto"
    sealed: dict[str, Any] = {**thoughts, "summary": []}
    for given in (thoughts, sealed):
        assert "<think>Let me see.</think>" in await read(given, {"role": "assistant", "content": "Yes."})


def test_the_sdk_prewarms_a_prompt(client: openai.OpenAI, lead: Lead):
    asked: Any = {"model": "toy", "input": "a long story " * 20, "temperature": 0}
    create: Any = client.responses.create
    warm = create(**asked, extra_body={"prompt_cache_options": {"prewarm": True}})
    assert (warm.status, warm.output) == ("completed", [])
    assert warm.usage
    assert warm.usage.output_tokens == 0
    assert warm.usage.input_tokens_details.cached_tokens < 20
    lead.until_idle()
    cached = create(**asked).usage
    assert cached
    assert cached.input_tokens_details.cached_tokens >= warm.usage.input_tokens - 1


def test_service_tier_is_told_again(client: openai.OpenAI):
    assert client.responses.create(model="toy", input=HELLO, service_tier="flex").service_tier == "flex"


@pytest.mark.parametrize(("context", "kept"), [(None, True), ("all_turns", True), ("current_turn", False)])
async def test_thoughts_of_earlier_turns_follow_context(context: str | None, kept: bool):
    one = script("done")
    thought = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "aha"}]}
    now = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "so"}]}
    turns: list[Any] = [
        {"role": "user", "content": "look"},
        thought,
        {"role": "assistant", "content": "yes"},
        {"role": "user", "content": "again"},
        now,
        {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "a hole"},
    ]
    await ask(serving(one, template=THINKING), input=turns, reasoning={"context": context})
    assert ("aha" in prompt_of(one)) is kept
    assert "<think>so</think>" in prompt_of(one)


async def test_other_ways_to_reason_are_refused():
    called = await ask(serving(), reasoning={"mode": "pro"})
    assert called.status == 400
    assert called.json["error"]["param"] == "reasoning.mode"


async def test_items_in_other_spellings_are_read():
    one = script("done")
    turns: list[Any] = [
        {"role": "user", "content": "look"},
        {"role": "assistant", "content": None},
        {"type": "function_call", "call_id": "c1", "name": "look", "arguments": {"day": "today"}},
        {"type": "function_call_output", "call_id": "c1", "output": {"seen": "a hole"}},
        {"type": "function_call", "call_id": "c2", "name": "look", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c2", "output": None},
    ]
    await ask(serving(one, template=THINKING), input=turns)
    for text in ('"day": "today"', '{"seen": "a hole"}'):
        assert text in prompt_of(one)
