"""llama-server's own form of completions, and its fields and routes that no other form has."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx
import pytest

from server.engine.events import Committed, Finished, Progress, Started
from tests.contract.contract import validate
from tests.fake_backend import FakeBackend, FakeModel
from tests.http_lead import Lead, serving
from tests.server.api.scripted import CANCELLED_STATS, Call, Script, services

PROMPT = "once upon a time"
IDS = list(PROMPT.encode())


@pytest.fixture(scope="module")
def endless() -> Iterator[Lead]:
    with serving(FakeBackend(FakeModel(seed=3, eog_rate=0.0), n_ctx=256)) as one:
        yield one


def post(lead: Lead, path: str = "/completion", **body: Any) -> httpx.Response:
    return httpx.post(lead.url + path, json={"prompt": PROMPT, "n_predict": 12, **body}, timeout=20)


def told(lead: Lead, **body: Any) -> Any:
    response = post(lead, **body)
    assert response.status_code == 200, response.text
    validate("NativeReply", response.json())
    return response.json()


def parts(response: httpx.Response) -> list[dict[str, Any]]:
    found = [json.loads(line.removeprefix("data: ")) for line in response.text.splitlines() if "{" in line]
    for part in found:
        validate("NativeChunk", part)
    return found


@pytest.mark.parametrize("path", ["/completion", "/completions"])
def test_a_reply_says_what_llama_server_says(endless: Lead, path: str):
    reply = post(endless, path, stop=["%"], seed=7, ignore_eos=True, cache_prompt=False).json()
    validate("NativeReply", reply)
    assert (reply["stop"], reply["stop_type"], reply["stopping_word"]) == (True, "limit", "")
    assert (reply["tokens_predicted"], reply["tokens_evaluated"]) == (12, len(IDS))
    assert (reply["prompt"], reply["tokens"]) == (PROMPT, [])
    assert reply["timings"]["predicted_n"] == 12
    settings = reply["generation_settings"]
    assert (settings["n_predict"], settings["seed"], settings["stop"]) == (12, 7, ["%"])
    assert settings["logit_bias"]
    assert all(bias["bias"] is None for bias in settings["logit_bias"])


def test_why_it_stopped(endless: Lead, lead: Lead):
    whole = told(endless)["content"]
    stopped = told(endless, stop=[whole[5:7]])
    assert (stopped["stop_type"], stopped["stopping_word"]) == ("word", whole[5:7])
    assert told(lead, n_predict=-1)["stop_type"] == "eos"
    full = told(endless, n_predict=-1)
    assert (full["stop_type"], full["truncated"]) == ("limit", True)
    assert told(endless)["truncated"] is False


def test_stream_ends_with_whole_reply(endless: Lead):
    whole = told(endless, return_tokens=True)
    *before, last = parts(post(endless, stream=True))
    assert "".join(part["content"] for part in before) == whole["content"]
    assert [token for part in before for token in part["tokens"]] == whole["tokens"]
    assert all(not part["stop"] for part in before)
    assert (last["stop"], last["content"], last["generation_settings"]["stream"]) == (True, "", True)


@pytest.mark.parametrize(
    "prompt",
    [IDS, [*b"once", " upon a time"], {"prompt_string": PROMPT}, [{"prompt_string": PROMPT}]],
    ids=["ids", "mixed", "object", "objects"],
)
def test_prompt_forms_give_one_reply(endless: Lead, prompt: Any):
    assert told(endless, prompt=prompt)["content"] == told(endless)["content"]


def test_several_prompts_are_a_list(endless: Lead):
    replies = told(endless, prompt=[PROMPT, {"prompt_string": PROMPT}, IDS], n_cmpl=2, temperature=1, seed=3)
    assert [reply["index"] for reply in replies] == list(range(6))
    assert len({reply["content"] for reply in replies}) == 2


def test_only_the_fields_that_are_asked_for(endless: Lead):
    fields = ["content", "generation_settings/n_predict", "timings/nothing", "nothing"]
    assert set(told(endless, response_fields=fields)) == {"content", "generation_settings/n_predict"}
    *_, last = parts(post(endless, response_fields=fields, stream=True))
    assert last == {"content": "", "generation_settings/n_predict": 12}


def test_probabilities_carry_ids_and_bytes(endless: Lead):
    reply = told(endless, n_probs=3)
    entries = reply["completion_probabilities"]
    assert bytes(byte for entry in entries for byte in entry["bytes"]) == reply["content"].encode()
    assert [entry["id"] for entry in entries] == list(reply["content"].encode())
    assert all(len(entry["top_logprobs"]) == 3 for entry in entries)
    streamed = [
        part["completion_probabilities"] for part in parts(post(endless, n_probs=3, stream=True))[:-1]
    ]
    assert [len(one) for one in streamed] == [1] * 12
    assert [one for [one] in streamed] == entries


def test_probabilities_after_the_samplers(endless: Lead):
    hot = {"n_probs": 5, "temperature": 2.0, "top_k": 4, "seed": 5, "min_p": 0, "top_p": 1}
    drawn = told(endless, post_sampling_probs=True, **hot)["completion_probabilities"]
    model = told(endless, **hot)["completion_probabilities"]
    for entry, before in zip(drawn, model, strict=True):
        logits = [one["logprob"] / 2.0 for one in before["top_logprobs"][:4]]
        total = sum(map(math.exp, logits))
        assert [one["prob"] for one in entry["top_probs"]] == pytest.approx(
            [math.exp(logit) / total for logit in logits], abs=1e-6
        )
        assert entry["prob"] in [one["prob"] for one in entry["top_probs"]]


def test_cache_prompt_false_reuses_nothing(endless: Lead):
    counts = [told(endless, cache_prompt=cached)["timings"]["cache_n"] for cached in (True, True, False)]
    assert counts[1:] == [len(IDS) - 1, 0]


def test_slot_is_chosen_and_reported(endless: Lead):
    for slot in (2, 0, 2):
        assert told(endless, id_slot=slot)["id_slot"] == slot
    chat = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4, "id_slot": 99}
    response = httpx.post(f"{endless.url}/v1/chat/completions", json=chat)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "id_slot"


def test_progress_precedes_the_text(endless: Lead):
    body: dict[str, Any] = {
        "prompt": "a" * 100,
        "stream": True,
        "return_progress": True,
        "timings_per_token": True,
    }
    found = [part for part in parts(post(endless, **body, cache_prompt=False)) if "prompt_progress" in part]
    progress = [part["prompt_progress"] for part in found]
    assert (progress[0]["processed"], progress[-1]["processed"]) == (0, 100)
    assert [one["processed"] for one in progress] == sorted({one["processed"] for one in progress})
    assert len(progress) > 2
    assert {(one["total"], one["cache"]) for one in progress} == {(100, 0)}
    assert found[0]["timings"]["prompt_ms"] == found[0]["timings"]["prompt_n"] == 0


async def test_time_limit_needs_second_line():
    script = Script(Started(5, 2, at=1.0), Progress(5, at=1.5))
    script.tell(Committed(tuple(b"ab"), (None, None), at=2.0))
    script.tell(Committed(tuple(b"\n"), (None,), at=2.4))
    script.tell(Committed(tuple(b"c"), (None,), at=2.6))
    script.tell(Committed(tuple(b"d"), (None,), at=2.7))
    call = Call(services(script), path="/completion", body={"prompt": "hello", "t_max_predict_ms": 500})
    await call.run()
    assert (call.json["content"], call.json["stop_type"]) == ("ab\nc", "limit")
    assert script.cancels[0] == 4


async def test_time_limit_spares_first_line():
    script = Script(Started(5, 2), Committed(tuple(b"a"), (None,), at=1.0))
    script.tell(Committed(tuple(b"b"), (None,), at=9.0))
    script.tell(Finished("stop", CANCELLED_STATS))
    call = Call(services(script), path="/completion", body={"prompt": "hello", "t_max_predict_ms": 500})
    await call.run()
    assert call.json["content"] == "ab"


REFUSED: dict[str, Any] = {
    "lora": [{"id": 0, "scale": 1.0}],
    "min_keep": 1,
    "n_discard": 1,
    "n_cache_reuse": 64,
    "adaptive_target": 0.5,
    "grammar_lazy": True,
    "grammar_triggers": [{}],
    "reasoning_budget_tokens": 5,
    "echo": True,
}


@pytest.mark.parametrize("name", REFUSED)
def test_unsupported_field_is_refused(endless: Lead, name: str):
    error = post(endless, **{name: REFUSED[name]}).json()["error"]
    assert (error["param"], error["code"]) == (name, "unsupported_parameter")


def test_pictures_are_refused(endless: Lead):
    response = post(endless, prompt={"prompt_string": "<__media__>", "multimodal_data": ["aGk="]})
    assert response.status_code == 400
    assert "texts only" in response.json()["error"]["message"]


def test_health_is_told_below_v1_too(endless: Lead):
    assert httpx.get(f"{endless.url}/v1/health").json() == httpx.get(f"{endless.url}/health").json()


async def test_adapters_are_listed_and_their_scales_stay():
    state = replace(services(Script()), adapters=[("one.gguf", 0.5), ("two.gguf", 0.0)])
    listed = Call(state, path="/lora-adapters", method="GET")
    await listed.run()
    assert listed.json == [
        {"id": 0, "path": "one.gguf", "scale": 0.5},
        {"id": 1, "path": "two.gguf", "scale": 0.0},
    ]
    for scales, status in (([{"id": 0, "scale": 0.5}], 200), ([{"id": 0, "scale": 1.0}], 400), ([3], 400)):
        call = Call(state, path="/lora-adapters", body=scales)  # pyright: ignore[reportArgumentType]
        await call.run()
        assert call.status == status, scales


async def test_adapter_scales_may_be_named():
    for adapters, scale, status in (
        ([("one.gguf", 0.5)], 0.5, 200),
        ([("one.gguf", 0.5)], 1.0, 400),
        ([], 0.5, 400),
    ):
        script = Script(
            Started(5, 2), Committed(tuple(b"ab"), (None, None)), Finished("stop", CANCELLED_STATS)
        )
        body = {"prompt": "hello", "lora": [{"id": 0, "scale": scale}]}
        call = Call(replace(services(script), adapters=adapters), path="/completion", body=body)
        await call.run()
        assert call.status == status
        assert status == 200 or call.json["error"]["param"] == "lora"


@pytest.mark.parametrize(
    ("text", "content", "stop_type"),
    [
        ("ab\n    cd\n\t\t\t\te", "ab\n    cd\n\t\t\t\te", "eos"),
        ("ab\n    cd\n  e", "ab\n    cd\n  ", "limit"),
        ("ab\n\n    cd", "ab\n", "limit"),
        ("ab\nc", "ab\n", "limit"),
        ("ab\n  ", "ab\n  ", "eos"),
    ],
)
async def test_small_indent_ends_the_reply(text: str, content: str, stop_type: str):
    for pieces in (text, [text]):
        script = Script(Started(5, 2))
        for piece in pieces:
            script.tell(Committed(tuple(piece.encode()), (None,) * len(piece)))
        script.tell(Finished("stop", CANCELLED_STATS))
        call = Call(services(script), path="/completion", body={"prompt": "hello", "n_indent": 4})
        await call.run()
        assert (call.json["content"], call.json["stop_type"]) == (content, stop_type)


@pytest.mark.parametrize("path", ["/chat/completions/input_tokens", "/v1/chat/completions/input_tokens"])
def test_the_tokens_of_a_chat_are_counted(endless: Lead, path: str):
    body = {"messages": [{"role": "user", "content": "hello"}]}
    counted = httpx.post(endless.url + path, json=body).json()
    whole = httpx.post(f"{endless.url}/v1/chat/completions", json={**body, "max_tokens": 1}).json()
    assert counted["input_tokens"] == whole["usage"]["prompt_tokens"]


def test_the_tokens_of_a_response_are_counted(endless: Lead):
    body = {"input": "hello", "instructions": "be brief"}
    counted = httpx.post(f"{endless.url}/v1/responses/input_tokens", json=body).json()
    whole = httpx.post(f"{endless.url}/v1/responses", json={**body, "max_output_tokens": 1}).json()
    assert counted["input_tokens"] == whole["usage"]["input_tokens"]
    long = httpx.post(f"{endless.url}/v1/responses/input_tokens", json={"input": "a" * 9999})
    assert long.json()["input_tokens"] > 9999


@pytest.mark.parametrize("bias", [{"1": None}, {"1": {"2": 3}}, [[1]], [[1, True]], [[None, 1]], [[True, 1]]])
def test_counted_prompt_checks_its_biases(endless: Lead, bias: Any):
    body = {"input": "hello", "logit_bias": bias}
    refused = httpx.post(f"{endless.url}/v1/responses/input_tokens", json=body)
    assert refused.json()["error"]["param"] == "logit_bias"


@pytest.mark.parametrize("part", ["slots", "metrics", "ui"])
def test_hidden_routes_are_not_served(part: Any):
    path, status = {"slots": ("/slots", 501), "metrics": ("/metrics", 501), "ui": ("/", 404)}[part]
    with serving(FakeBackend(FakeModel()), hidden=frozenset([part])) as one:
        assert httpx.get(one.url + path).status_code == status
        assert httpx.get(f"{one.url}/health").status_code == 200
