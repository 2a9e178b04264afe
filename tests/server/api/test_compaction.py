"""Conversations that the model summarises, when it is asked to and when they get too long."""

from __future__ import annotations

from typing import Any

import httpx
import openai
import pytest

from server.api.chat.summary import INSTRUCTION
from server.api.sealed import summary_in
from tests.contract.contract import validate
from tests.http_lead import Lead
from tests.server.api.test_responses import THINKING, ask, events_of, prompt_of, script, serving

TURNS: list[Any] = [
    {"role": "user", "content": "mend the roof"},
    {"role": "assistant", "content": "It rains in."},
    {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c1", "output": "a hole"},
]


async def test_a_summary_stands_for_the_conversation():
    one, two = script("<think>Hm.</think>The roof has a hole."), script("Done.")
    state = serving(one, two, template=THINKING)
    told = (await ask(state, "/v1/responses/compact", input=TURNS)).json
    validate("Compacted", told)
    assert INSTRUCTION in prompt_of(one)
    said, compaction = told["output"]
    assert (said["role"], said["content"][0]["text"]) == ("user", "mend the roof")
    assert summary_in(compaction["encrypted_content"]) == "The roof has a hole."
    await ask(state, input=[*told["output"], {"role": "user", "content": "go on"}])
    prompt = prompt_of(two)
    assert "mend the roof" in prompt
    assert "in short:\nThe roof has a hole." in prompt
    assert prompt.rindex("go on") > prompt.rindex("The roof has a hole.")


async def test_a_long_prompt_is_summarised_first():
    one, two, three = script("It has a hole."), script("I mend it."), script("Done.")
    state = serving(one, two, three, template=THINKING)
    manage = [{"type": "compaction", "compact_threshold": 20}]
    called = await ask(state, input=TURNS, context_management=manage, stream=True)
    events = events_of(called.content)
    compaction, message = events[-1]["response"]["output"]
    assert [event["output_index"] for event in events if event["type"].endswith("item.done")] == [0, 1]
    assert compaction["type"] == "compaction"
    assert message["content"][0]["text"] == "I mend it."
    assert "a hole" not in prompt_of(two).replace("It has a hole", "")
    again = [*TURNS, compaction, message, {"role": "user", "content": "and"}]
    await ask(state, input=again, context_management=[{"type": "compaction"}])
    assert "It rains in." not in prompt_of(three)


async def test_a_short_prompt_is_left_alone():
    one = script("Yes.")
    told = (
        await ask(serving(one), context_management=[{"type": "compaction", "compact_threshold": 4000}])
    ).json
    assert [item["type"] for item in told["output"]] == ["message"]


async def test_a_summary_without_words_is_no_summary():
    called = await ask(
        serving(script("<think>Hm.</think>"), template=THINKING), "/v1/responses/compact", input=TURNS
    )
    assert called.status == 500
    assert "no summary" in called.json["error"]["message"]


def test_the_sdk_compacts_a_stored_conversation(client: openai.OpenAI, lead: Lead):
    first = client.responses.create(model="toy", input="mend the roof", temperature=0)
    compacted = client.responses.compact(model="toy", previous_response_id=first.id)
    assert [item.type for item in compacted.output] == ["message", "compaction"]
    turns: Any = [
        *[item.to_dict(warnings=False) for item in compacted.output],
        {"role": "user", "content": "go on"},
    ]
    assert client.responses.create(model="toy", input=turns).output_text
    with pytest.raises(openai.BadRequestError) as caught:
        client.post("/responses/compact", cast_to=object, body={"model": "toy"})
    assert caught.value.param == "input"
    trigger = {"input": [{"role": "user", "content": "x"}, {"type": "compaction_trigger"}]}
    refused = httpx.post(f"{lead.url}/v1/responses", json=trigger)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "input.1.type")
