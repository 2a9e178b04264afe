"""Why the cache missed: where a prompt parts from that of an earlier reply."""

from __future__ import annotations

from typing import Any

import anthropic
import openai

from server.api.cache_misses import PromptMemory
from tests.http_lead import Lead
from tests.server.api.test_message_blocks import WEATHER
from tests.server.api.test_responses import WEATHER as FLAT
from tests.server.api.test_responses import answered


def test_responses_tell_where_prompts_part(client: openai.OpenAI, lead: Lead):
    first = answered(lead, input="one two three", max_output_tokens=4)
    n_prompt = first["usage"]["input_tokens"]

    def compared(**body: Any) -> dict[str, Any]:
        options = {"comparison_response_id": first["id"], **body.pop("options", {})}
        return answered(lead, max_output_tokens=4, prompt_cache_options=options, **body)[
            "prompt_cache_diagnostics"
        ]

    assert compared(input="more", previous_response_id=first["id"])["type"] == "cache_hit"
    missed = compared(input="one two four")
    assert (missed["type"], missed["reason"]) == ("cache_miss", "input_changed")
    assert missed["cache_missed_tokens"] + missed["comparison_reusable_tokens"] == n_prompt
    assert 0 < missed["cache_missed_tokens"] < n_prompt
    assert compared(input="one two three", tools=[FLAT])["reason"] == "tools_changed"
    gone = compared(input="x", options={"comparison_response_id": "resp_gone"})
    assert gone == {"type": "comparison_response_not_found"}


def test_messages_tell_where_prompts_part(lead: Lead):
    with anthropic.Anthropic(base_url=lead.url, api_key="none", max_retries=0) as client:
        create: Any = client.messages.create

        def asked(text: str, previous: str | None, **more: Any) -> Any:
            messages = [{"role": "user", "content": text}]
            compared = {"diagnostics": {"previous_message_id": previous}}
            return create(model="toy", max_tokens=4, messages=messages, extra_body=compared, **more)

        first = asked("one two three", None)
        assert first.diagnostics is None
        assert asked("one two three", first.id).diagnostics is None
        told = [
            asked("one two four", first.id),
            asked("one two three", first.id, system="be brief"),
            asked("one two three", first.id, tools=[WEATHER]),
            asked("one", "msg_gone"),
        ]
        reasons = [one.to_dict()["diagnostics"]["cache_miss_reason"] for one in told]
        assert [reason["type"] for reason in reasons] == [
            "messages_changed",
            "system_changed",
            "tools_changed",
            "previous_message_not_found",
        ]
        assert all(reason["cache_missed_input_tokens"] > 0 for reason in reasons[:3])


def test_the_oldest_prompts_are_forgotten():
    memory = PromptMemory(most_bytes=100)
    for id in ("a", "b", "c"):
        memory.remember("", id, range(10), {})
    assert memory.divergence("", "a", [], {}) is None
    found = memory.divergence("", "c", [0, 1, 5], {})
    assert found
    assert (found.n_common, found.n_missed) == (2, 8)
    assert memory.divergence("another salt", "c", [], {}) is None
