"""llama-server's fields in OpenAI's forms, and what of its flags the routes see."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx
import pytest

from server.api.middleware import Edge
from server.api.origins import LOCAL
from server.api.services import ANY, ModelCard
from server.flags import read
from server.lead.listening import ClientPolicy
from server.settings import LeadSettings
from tests.contract.contract import validate
from tests.fake_backend import FakeBackend, FakeModel
from tests.http_lead import Lead, serving
from tests.server.api.scripted import Call, Script, services

HELLO = [{"role": "user", "content": "hello"}]
N_CTX = 256


@pytest.fixture(scope="module")
def endless() -> Iterator[Lead]:
    with serving(FakeBackend(FakeModel(seed=3, eog_rate=0.0), n_ctx=N_CTX)) as one:
        yield one


def post(lead: Lead, path: str = "/v1/chat/completions", **body: Any) -> httpx.Response:
    asked = body if "prompt" in body or "input" in body else {"messages": HELLO, **body}
    return httpx.post(lead.url + path, json=asked, timeout=20)


def named(name: str, *values: Any) -> list[dict[str, Any]]:
    return [{name: value} for value in values]


def chunks(response: httpx.Response) -> list[dict[str, Any]]:
    return [json.loads(line.removeprefix("data: ")) for line in response.text.splitlines() if "{" in line]


@pytest.mark.parametrize("name", ["n_predict", "max_tokens", "max_completion_tokens"])
def test_names_for_the_length_of_a_reply(endless: Lead, name: str):
    nine, endlessly, none = (post(endless, **body).json() for body in named(name, 9, -1, 0))
    assert nine["usage"]["completion_tokens"] == 9
    assert endlessly["usage"]["total_tokens"] == N_CTX
    if name == "n_predict":  # the prompt is evaluated
        assert none["usage"]["completion_tokens"] == 1
    else:
        assert none["error"]["param"] == name


def test_predict_limits_unlimited_requests():
    with serving(FakeBackend(FakeModel(eog_rate=0.0), n_ctx=N_CTX), max_tokens=7) as lead:
        for path, body in (("/v1/completions", {"prompt": "a"}), ("/v1/chat/completions", {})):
            usage = post(lead, path, **body).json()["usage"]
            assert usage["completion_tokens"] == 7, path


def test_the_chunk_of_usage_has_timings(endless: Lead):
    found = chunks(post(endless, stream=True, stream_options={"include_usage": True}, max_tokens=5))
    assert found[-1]["choices"] == []
    assert found[-1]["timings"]["predicted_n"] == 5


def test_progress_in_chunks_and_events(endless: Lead):
    body: dict[str, Any] = {"stream": True, "return_progress": True, "cache_prompt": False}
    text = "x" * 120
    chat = chunks(post(endless, messages=[{"role": "user", "content": text}], max_tokens=3, **body))
    response = chunks(post(endless, "/v1/responses", input=text, max_output_tokens=3, **body))
    for found in (chat, response):
        progress = [one["prompt_progress"] for one in found if "prompt_progress" in one]
        assert progress[0]["processed"] == 0
        assert progress[-1]["processed"] == progress[-1]["total"] > 120
        assert len(progress) > 3
    assert response[-1]["timings"]["predicted_n"] == 3


def test_long_prompt_reports_its_length(endless: Lead):
    response = post(endless, messages=[{"role": "user", "content": "x" * 300}])
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (400, "context_length_exceeded")
    assert error["type"] == "exceed_context_size_error"
    assert (error["n_ctx"], error["n_prompt_tokens"] >= 300) == (N_CTX, True)
    assert "exceeds the available context size" in error["message"]


@pytest.mark.parametrize(
    ("body", "ends"),
    [
        ({}, "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"),
        ({"add_generation_prompt": False}, "<|im_start|>user\nhello<|im_end|>\n"),
        ({"messages": [*HELLO, {"role": "assistant", "content": "Oh"}]}, "<|im_start|>assistant\nOh"),
        (
            {"messages": [*HELLO, {"role": "assistant", "content": "Oh"}], "continue_final_message": False},
            "<|im_start|>assistant\nOh<|im_end|>\n<|im_start|>assistant\n",
        ),
    ],
    ids=["begun", "not begun", "continued", "not continued"],
)
def test_how_the_prompt_ends(endless: Lead, body: dict[str, Any], ends: str):
    assert post(endless, "/apply-template", **body).json()["prompt"].endswith(ends)


@pytest.mark.parametrize(
    "body",
    [
        {
            "messages": [*HELLO, {"role": "assistant", "content": "Oh"}],
            "add_generation_prompt": True,
            "continue_final_message": True,
        },
        {"continue_final_message": True},
    ],
    ids=["both", "nothing to continue"],
)
def test_a_reply_that_cannot_be_continued(endless: Lead, body: dict[str, Any]):
    response = post(endless, **body)
    assert (response.status_code, response.json()["error"]["param"]) == (400, "continue_final_message")


def test_verbose_tells_llama_servers_own_form(endless: Lead):
    told = post(endless, verbose=True, max_tokens=4).json()["__verbose"]
    validate("NativeEnd", told)
    assert told["prompt"].endswith("<|im_start|>assistant\n")
    assert told["generation_settings"]["n_predict"] == 4
    assert "__verbose" not in post(endless, max_tokens=4).json()


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"stop": ["a"] * 1025}, "stop: at most 1024 entries"),
        ({"stop": 1}, "stop: must be a text or a list"),
        ({"stop": ["a", 1]}, "stop.1: must be a text"),
        ({"messages": ["a"]}, "messages.0: must be an object"),
        ({"temperature": "1"}, "temperature: must be a number"),
        ({"response_format": {"type": "x"}}, "response_format.type: must be 'text', 'json_object' or"),
    ],
    ids=str,
)
def test_errors_use_json_words(endless: Lead, body: dict[str, Any], message: str):
    assert post(endless, **body).json()["error"]["message"].startswith(message)


def test_echo_tells_the_logprobs_of_the_prompt(endless: Lead):
    asked = {"temperature": 0, "logprobs": 2}
    [reply] = post(endless, "/v1/completions", prompt="once", max_tokens=60, **asked).json()["choices"]
    whole = "once" + reply["text"]
    again = post(endless, "/v1/completions", prompt=whole, max_tokens=2, echo=True, **asked).json()
    validate("Completion", again)
    [echoed] = again["choices"]
    logprobs = echoed["logprobs"]
    assert "".join(logprobs["tokens"]) == echoed["text"] == whole + echoed["text"][len(whole) :]
    assert logprobs["token_logprobs"][0] is None is logprobs["top_logprobs"][0]
    assert logprobs["token_logprobs"][4:64] == pytest.approx(reply["logprobs"]["token_logprobs"])
    assert logprobs["top_logprobs"][4:64] == reply["logprobs"]["top_logprobs"]
    assert logprobs["text_offset"] == list(range(66))
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    endless.until_idle()


def test_batched_prompts_keep_their_logprobs(endless: Lead):
    prompts = ["a" * 100, "b" * 30, "ab" * 50]
    asked: dict[str, Any] = {"max_tokens": 1, "echo": True, "logprobs": 1}
    together = post(endless, "/v1/completions", prompt=prompts, **asked).json()["choices"]
    for prompt, choice in zip(prompts, together, strict=True):
        [alone] = post(endless, "/v1/completions", prompt=prompt, **asked).json()["choices"]
        assert alone["logprobs"] == choice["logprobs"]
    endless.until_idle()


async def test_alias_star_takes_any_name():
    card = ModelCard("toy", 1, N_CTX, 1000, "a toy", aliases=[ANY])
    state = replace(services(Script()), model=card)
    call = Call(state, path="/tokenize", body={"content": "a"})
    await call.run()
    assert card.is_called("gpt-4o")
    assert not replace(card, aliases=["small"]).is_called("gpt-4o")


def test_defaults_of_requests_come_from_the_server():
    defaults: dict[str, Any] = {"context_shift": True, "verbose": True, "reasoning_format": "none"}
    with serving(FakeBackend(FakeModel(eog_rate=0.0), n_ctx=N_CTX), **defaults) as lead:
        reply = post(lead, max_tokens=300).json()
        assert (reply["usage"]["completion_tokens"], reply["metrics"]["truncated"]) == (300, True)
        assert "__verbose" in reply
        assert post(lead, max_tokens=300, context_shift=False).json()["metrics"]["truncated"] is False


@pytest.mark.parametrize(
    ("origin", "allowed"),
    [
        ("http://localhost:8080", True),
        ("http://127.0.0.1", True),
        ("http://[::1]:3000", True),
        ("http://localhost.evil.com", False),
        ("http://notlocalhost", False),
    ],
)
def test_localhost_origin_admits_local_pages(origin: str, allowed: bool):
    headers = {"Origin": origin, "Access-Control-Request-Method": "POST"}
    with serving(
        FakeBackend(FakeModel()), door=ClientPolicy(Edge(cors_origins=(LOCAL,)), None, grace_s=0)
    ) as lead:
        response = httpx.options(f"{lead.url}/v1/completions", headers=headers)
    assert response.status_code == 200
    assert response.headers.get("access-control-allow-origin") == (origin if allowed else None)


def test_flags_are_those_of_llama_server():
    argv = ["--context-shift", "--reasoning", "off", "--no-slots", "--no-metrics", "--no-webui"]
    settings = read(
        LeadSettings, [*argv, "--jinja", "-cb", "-n", "64", "--no-kv-unified", "--alias", "small,*"]
    )
    assert (settings.context_shift, settings.reasoning, settings.predict) == (True, "off", 64)
    assert not any((settings.slots, settings.metrics, settings.ui, settings.kv_unified))
    assert settings.names == ("small", "*")
    assert read(LeadSettings, ["--alias", "*"]).names == ("duo-tiny-q8_0", "*")
