"""What the page of llama-server asks for, by its public source, and what it reads of the answers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.fake_backend import FakeBackend, FakeModel
from tests.http_lead import Lead, serving

HELLO: list[Any] = [{"role": "user", "content": "hello there"}]
SETTINGS: dict[str, Any] = {
    "temperature": 0.8,
    "max_tokens": -1,
    "dynatemp_range": 0,
    "dynatemp_exponent": 1,
    "top_k": 40,
    "top_p": 0.95,
    "min_p": 0.05,
    "xtc_probability": 0,
    "xtc_threshold": 0.1,
    "typ_p": 1,
    "repeat_last_n": 64,
    "repeat_penalty": 1,
    "presence_penalty": 0,
    "frequency_penalty": 0,
    "dry_multiplier": 0,
    "dry_base": 1.75,
    "dry_allowed_length": 2,
    "dry_penalty_last_n": -1,
    "samplers": ["top_k", "typ_p", "top_p", "min_p", "temperature"],
    "backend_sampling": False,
    "timings_per_token": True,
}
TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {"name": "get_time", "description": "Of now", "parameters": {"type": "object"}},
    }
]


@pytest.fixture(scope="module")
def lead() -> Iterator[Lead]:
    with serving(FakeBackend(FakeModel(seed=3, eog_rate=0.05), n_ctx=1024)) as one:
        yield one


def got(lead: Lead, path: str) -> Any:
    response = httpx.get(lead.url + path, timeout=20)
    assert response.status_code == 200, response.text
    return response.json()


def streamed(lead: Lead, **body: Any) -> list[dict[str, Any]]:
    """Return the chunks of a reply, which ends with the mark that the page waits for."""
    always = {"stream": True, "return_progress": True, "sse_ping_interval": 1, "reasoning_control": True}
    asked = {"messages": HELLO, "reasoning_format": "auto", **always, **body}
    headers = {"X-Conversation-Id": "6f1c"}
    response = httpx.post(f"{lead.url}/v1/chat/completions", json=asked, headers=headers, timeout=20)
    assert response.status_code == 200, response.text
    *data, done = [line.removeprefix("data: ") for line in response.text.splitlines() if line[:5] == "data:"]
    assert done == "[DONE]"
    return [json.loads(one) for one in data]


def test_page_learns_the_servers_properties(lead: Lead):
    props = got(lead, "/props?autoload=false")
    assert props["default_generation_settings"]["n_ctx"] == 1024
    defaults = props["default_generation_settings"]["params"]
    named = {
        "temperature",
        "top_k",
        "top_p",
        "min_p",
        "xtc_probability",
        "samplers",
        "dry_base",
        "max_tokens",
    }
    assert named <= set(defaults)
    assert props["modalities"] == {"vision": False, "audio": False, "video": False}
    assert {"total_slots", "model_path", "chat_template", "build_info"} <= set(props)
    [model] = got(lead, "/v1/models")["data"]
    assert {"id", "object", "owned_by", "created", "meta"} <= set(model)
    assert [slot["is_processing"] for slot in got(lead, f"/slots?model={model['id']}")]


def test_llama_page_shows_progress(lead: Lead):
    chunks = streamed(lead, **SETTINGS, chat_template_kwargs={"enable_thinking": True})
    progress = [chunk["prompt_progress"] for chunk in chunks if "prompt_progress" in chunk]
    assert {"cache", "processed", "time_ms", "total"} == set(progress[0])
    assert progress[-1]["processed"] == progress[-1]["total"]
    assert len({(chunk["id"], chunk["model"]) for chunk in chunks}) == 1
    text = [chunk for chunk in chunks if chunk["choices"] and chunk["choices"][0]["delta"].get("content")]
    shown = {"cache_n", "prompt_n", "prompt_ms", "predicted_n", "predicted_ms"}
    assert text
    assert all(shown <= set(chunk["timings"]) for chunk in (*text, chunks[-1]))


@pytest.mark.parametrize(
    "body",
    [
        {"tools": TOOLS},
        {"thinking_budget_tokens": 512, "chat_template_kwargs": {"enable_thinking": True}},
        {"reasoning_format": "none"},
        {"chat_template_kwargs": {"enable_thinking": False}},
        {
            "messages": [*HELLO, {"role": "assistant", "content": "Well"}],
            "continue_final_message": True,
            "add_generation_prompt": False,
        },
    ],
    ids=lambda body: next(iter(body)),
)
def test_other_page_requests_are_answered(lead: Lead, body: dict[str, Any]):
    assert streamed(lead, **body)[-1]["timings"]["predicted_n"] > 0


def test_the_next_turn_is_evaluated_beforehand(lead: Lead):
    messages = [*HELLO, {"role": "assistant", "content": "Hi. " * 20, "reasoning_content": "Hm."}]
    body = {"messages": messages, "n_predict": 0, "stream": False, "model": "toy"}
    assert httpx.post(f"{lead.url}/v1/chat/completions", json=body, timeout=20).status_code == 200
    [*_, last] = streamed(lead, messages=[*messages, {"role": "user", "content": "well?"}])
    assert last["timings"]["cache_n"] > 80
