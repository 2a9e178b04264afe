"""POST /rpc over HTTP: what every method does, and what it refuses."""

from __future__ import annotations

import json
import time
from collections.abc import Generator
from typing import Any

import httpx
import pytest

from server.api.rpc.rpc_params import CompletionParams
from server.api.rpc.rpc_route import METHODS
from server.sampling.params import SamplingParams
from tests.contract.contract import CONTRACT
from tests.fake_backend import IM_END, FakeBackend, FakeModel, FakeVocabulary
from tests.http_lead import Lead, serving
from tests.server.api.rpc_calls import PROMPT, completion, error, result
from tests.support import ENDLESS


@pytest.fixture
def endless() -> Generator[Lead]:
    """Yield a lead with endless replies at 2 ms a token, two slots and a queue of three in all."""
    backend = FakeBackend(FakeModel(eog_rate=0.0), n_ctx=ENDLESS, n_cells=ENDLESS, step_s=0.002)
    with serving(backend, max_queued=3, n_slots=2) as one:
        yield one


def polled(lead: Lead, handle: str) -> list[dict[str, Any]]:
    """Return all updates of an async completion, to its end."""
    updates: list[dict[str, Any]] = []
    deadline = time.monotonic() + 20
    finished = False
    while not finished:
        assert time.monotonic() < deadline
        news = result(lead, "async_completion_poll", {"handle": handle})
        updates += news["completion_updates"]
        finished = news["finished"]
    return updates


def test_init_reports_what_is_loaded(lead: Lead):
    told = result(lead, "init", {"model": "toy", "whatever": 1})
    assert (told["model"], told["n_ctx"], told["eos"]) == ("toy", 1024, IM_END)
    assert told["methods"] == list(METHODS)
    assert result(lead, "init") == told
    wrong = error(lead, "init", {"model": "other.gguf"})
    assert (wrong["code"], wrong["data"]["code"]) == (-32602, "model_not_found")


def test_the_system_has_a_status(lead: Lead):
    told = result(lead, "poll_system_status")
    assert told["status"] == "ok"
    assert told["slots"] == {"total": 4, "busy": 0}
    assert told["async_completions"] == 0


def test_drafts_have_a_status(lead: Lead):
    completion(lead)
    told = result(lead, "speculative_status", {})
    assert told["drafters"][0]["reason"] == "vocabulary sizes differ"
    assert told["tokens_predicted"] >= 40
    assert told["num_draft_tokens"] == 0


@pytest.mark.parametrize("params", [{"text": "aé<|im_end|>"}, ["aé<|im_end|>"]], ids=["name", "position"])
def test_tokens_of_a_text(lead: Lead, params: Any):
    assert result(lead, "tokenize", params) == {"tokens": [*"aé".encode(), IM_END], "length": 4}


def test_completion_equals_other_routes(lead: Lead):
    told = completion(lead)
    body = {"prompt": PROMPT, "max_tokens": 40, "temperature": 0}
    [choice] = httpx.post(f"{lead.url}/v1/completions", json=body, timeout=30).json()["choices"]
    assert told["content"] == choice["text"]
    assert (told["tokens_predicted"], told["tokens_evaluated"]) == (40, len(PROMPT))
    assert told["stopped_limit"] is True
    assert told["truncated"] is False
    assert told["timings"]["predicted_n"] == 40
    assert told["prompt_stats"]["length"] == len(PROMPT)
    assert "completion_probabilities" not in told
    assert completion(lead)["prompt_stats"]["cached"] > 0
    lead.until_idle()


@pytest.mark.parametrize(
    "prompt", [list(PROMPT.encode()), ["once upon", *b" a ", "time"], [*b"once ", "upon a time"]]
)
def test_prompt_may_mix_ids_and_text(lead: Lead, prompt: Any):
    assert completion(lead, prompt)["content"] == completion(lead)["content"]


def test_params_by_position(lead: Lead):
    assert result(lead, "get_completion", [PROMPT, 3])["tokens_predicted"] == 3
    assert error(lead, "get_completion", [PROMPT, 3, 0.5])["code"] == -32602


def test_a_stop_string_is_named(lead: Lead):
    text = completion(lead)["content"]
    word = text[10:13]
    told = completion(lead, stop=["never", word + text[13], word])
    assert told["content"] == text[: text.index(word)]
    assert (told["stopped_word"], told["stopping_word"]) == (True, word)
    assert not told["stopped_eos"]
    assert not told["stopped_limit"]


def test_text_ends_in_three_ways(lead: Lead):
    told = completion(lead, logit_bias={str(IM_END): 1000}, n_predict=-1)
    assert (told["content"], told["stopped_eos"], told["stopped_word"]) == ("", True, False)
    assert told["stopping_word"] == ""
    told = completion(lead, logit_bias={str(IM_END): 1000}, ignore_eos=True)
    assert told["stopped_limit"] is True


def test_completion_runs_to_context_end():
    with serving(FakeBackend(FakeModel(eog_rate=0.0), n_ctx=100)) as lead:
        told = result(lead, "get_completion", {"prompt": PROMPT, "temperature": 0})
        assert told["tokens_predicted"] == 100 - len(PROMPT)
        assert told["stopped_limit"] is True
        told = completion(lead, n_predict=120, context_shift=True, n_keep=4)
        assert (told["tokens_predicted"], told["truncated"]) == (120, True)
        lead.until_idle()


def test_probabilities_and_tokens(lead: Lead):
    told = completion(lead, n_probs=2, return_tokens=True)
    assert len(told["completion_probabilities"]) == len(told["tokens"]) == 40
    assert bytes(told["tokens"]).decode() == told["content"]
    assert [one["token"] for one in told["completion_probabilities"]] == list(told["content"])
    assert len(told["completion_probabilities"][0]["top_logprobs"]) == 2


def test_every_param_is_honoured(lead: Lead):
    params: dict[str, Any] = {
        "stop": "zzz",
        "temperature": 0.9,
        "top_k": 20,
        "top_p": 0.9,
        "typical_p": 0.9,
        "tfs_z": 1,
        "repeat_penalty": 1.1,
        "repeat_last_n": 16,
        "presence_penalty": 0.1,
        "frequency_penalty": 0.1,
        "penalize_nl": True,
        "n_keep": 2,
        "seed": 7,
        "n_probs": 1,
        "logit_bias": [["z", False]],
        "ignore_eos": True,
    }
    drawn = completion(lead, **params)
    assert completion(lead, **params)["content"] == drawn["content"]
    assert completion(lead, **{**params, "seed": 8})["content"] != drawn["content"]
    assert "z" not in drawn["content"]
    mirostat = {"mirostat": 2, "mirostat_tau": 3.0, "mirostat_eta": 0.2, "temperature": 1, "seed": 1}
    assert completion(lead, **mirostat)["tokens_predicted"] > 0
    assert completion(lead, grammar='root ::= "yes" | "no"', temperature=1)["content"] in ("yes", "no")
    assert json.loads(completion(lead, json_schema={"enum": ["yes"]})["content"]) == "yes"
    assert completion(lead, n_beams=2, seed=1)["tokens_predicted"] == 40
    lead.until_idle()


@pytest.mark.parametrize(
    ("params", "param"),
    [
        ({}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [[1, 2], [3]]}, "prompt"),
        ({"prompt": [1, None]}, "prompt"),
        ({"prompt": [1, 259]}, "prompt"),
        ({"prompt": "x", "n_predict": -2}, "n_predict"),
        ({"prompt": "x", "tfs_z": 0.9}, "tfs_z"),
        ({"prompt": "x", "penalize_nl": False, "repeat_penalty": 1.1}, "penalize_nl"),
        ({"prompt": "x", "penalize_nl": 0}, "penalize_nl"),
        ({"prompt": "x", "temperature": -1}, "temperature"),
        ({"prompt": "x", "stop": 1}, "stop"),
        ({"prompt": "x", "grammar": "root"}, "grammar"),
        ({"prompt": "x", "grammar": 'root ::= "a"', "json_schema": {}}, "json_schema"),
        ({"prompt": "x", "n": 2}, "n"),
        ({"prompt": "x", "best_of": 2}, "best_of"),
        ({"prompt": "x", "stream": True}, "stream"),
        ({"prompt": "x", "echo": True}, "echo"),
        ({"prompt": "x", "n_beams": 2, "mirostat": 1}, "n_beams"),
        ({"prompt": "x", "logit_bias": {"999": 1}}, "logit_bias"),
    ],
    ids=str,
)
@pytest.mark.parametrize("method", ["get_completion", "async_completion_init"])
def test_unsupported_parameter_is_refused(lead: Lead, method: str, params: Any, param: str):
    wrong = error(lead, method, params)
    assert wrong["code"] == -32602
    assert wrong["data"]["type"] == "invalid_request_error"
    assert wrong["data"]["param"].split(".")[0] == param
    assert len(lead.services.handles) == 0
    lead.until_idle()


def test_unpenalised_newlines_need_no_penalty(lead: Lead):
    assert completion(lead, penalize_nl=False)["content"] == completion(lead)["content"]


@pytest.mark.parametrize("method", ["get_completion", "async_completion_init"])
def test_long_prompt_has_own_code(lead: Lead, method: str):
    wrong = error(lead, method, {"prompt": "x" * 2000})
    assert (wrong["code"], wrong["data"]["code"]) == (-32001, "context_length_exceeded")


def test_async_completion_is_polled_through(lead: Lead):
    params = {"prompt": PROMPT, "n_predict": 40, "temperature": 0, "n_probs": 1}
    begun = result(lead, "async_completion_init", params)
    assert begun["prompt_stats"] == {"length": len(PROMPT)}
    updates = polled(lead, begun["handle"])
    whole = completion(lead, n_probs=1)
    assert "".join(update["content"] for update in updates) == whole["content"]
    told = [one for update in updates for one in update.get("completion_probabilities", ())]
    assert told == whole["completion_probabilities"]
    assert [update["stop"] for update in updates] == [False] * (len(updates) - 1) + [True]
    for name in ("tokens_predicted", "stopped_limit", "stopping_word", "truncated"):
        assert updates[-1][name] == whole[name]
    assert error(lead, "async_completion_poll", {"handle": begun["handle"]})["code"] == -32002
    assert result(lead, "poll_system_status")["async_completions"] == 0
    lead.until_idle()


def test_several_go_on_side_by_side(endless: Lead):
    texts = [PROMPT, "another beginning"]
    begun = [
        result(endless, "async_completion_init", {"prompt": text, "n_predict": 30, "temperature": 0})
        for text in texts
    ]
    endless.until(lambda engine: engine.n_active == 2 or not engine.n_waiting)
    told = ["".join(u["content"] for u in polled(endless, one["handle"])) for one in begun]
    assert told == [completion(endless, text, n_predict=30)["content"] for text in texts]
    endless.until_idle()


def test_stop_strings_end_it_while_nobody_polls(endless: Lead):
    text = completion(endless)["content"]
    params = {"prompt": PROMPT, "temperature": 0, "stop": text[20:24]}
    handle = result(endless, "async_completion_init", params)["handle"]
    endless.until_idle()
    assert polled(endless, handle)[-1]["stopped_word"] is True


def test_a_cancelled_one_leaves_its_slot(endless: Lead):
    handle = result(endless, "async_completion_init", {"prompt": PROMPT})["handle"]
    endless.until(lambda engine: engine.n_active == 1)
    assert result(endless, "poll_system_status")["async_completions"] == 1
    assert result(endless, "async_completion_cancel", {"handle": handle}) == {"cancelled": True}
    endless.until_idle()
    for method in ("async_completion_poll", "async_completion_cancel"):
        assert error(endless, method, {"handle": handle})["code"] == -32002


@pytest.mark.parametrize("method", ["async_completion_poll", "async_completion_cancel"])
def test_handles_that_never_were(lead: Lead, method: str):
    wrong = error(lead, method, {"handle": "nothing"})
    assert (wrong["code"], wrong["data"]["param"]) == (-32002, "handle")
    assert error(lead, method, {"handle": 1})["code"] == -32602
    assert error(lead, method, {})["code"] == -32602


def test_full_queue_says_retry_after(endless: Lead):
    handles = [result(endless, "async_completion_init", {"prompt": "x"})["handle"] for _ in range(3)]
    for method in ("get_completion", "async_completion_init"):
        wrong = error(endless, method, {"prompt": "x"})
        assert (wrong["code"], wrong["data"]["retry_after"]) == (-32000, 1)
    assert len(endless.services.handles) == 3
    for handle in handles:
        result(endless, "async_completion_cancel", [handle])
    endless.until_idle()


def test_leaving_client_ends_its_completions(endless: Lead):
    calls = [
        {"jsonrpc": "2.0", "id": i, "method": "get_completion", "params": {"prompt": "x"}} for i in range(2)
    ]
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{endless.url}/rpc", json=calls, timeout=0.5)
    endless.until_idle()


def test_async_completions_outlive_the_connection(endless: Lead):
    with httpx.Client(base_url=endless.url) as one:
        request = {"jsonrpc": "2.0", "id": 1, "method": "async_completion_init", "params": {"prompt": "x"}}
        handle = one.post("/rpc", json=request).json()["result"]["handle"]
    endless.until(lambda engine: engine.n_active == 1)
    first = result(endless, "async_completion_poll", {"handle": handle})
    assert not first["finished"]
    result(endless, "async_completion_cancel", {"handle": handle})
    endless.until_idle()


def test_shutdown_cancels_them():
    backend = FakeBackend(FakeModel(eog_rate=0.0), n_ctx=ENDLESS, n_cells=ENDLESS, step_s=0.002)
    with serving(backend) as lead:
        result(lead, "async_completion_init", {"prompt": "x"})
        lead.until(lambda engine: engine.n_active == 1)
    assert not lead.thread.engine.n_active
    assert len(lead.services.handles) == 0


def test_bug_is_an_internal_error(lead: Lead, monkeypatch: pytest.MonkeyPatch):
    def broken(_: FakeVocabulary, text: str, *, special: bool) -> list[int]:
        raise RuntimeError("secret")

    monkeypatch.setattr(FakeVocabulary, "tokenize", broken)
    wrong = error(lead, "tokenize", {"text": "x"})
    assert wrong["code"] == -32603
    assert "secret" not in wrong["message"]


def test_the_contract_lists_what_is_read():
    schemas = CONTRACT["components"]["schemas"]
    refused = set(CompletionParams.unsupported)
    assert set(schemas["RpcCompletionParams"]["properties"]) == set(CompletionParams.model_fields) - refused
    assert schemas["RpcRequest"]["properties"]["method"]["enum"] == list(METHODS)
    for name in refused:
        assert name in schemas["RpcCompletionParams"]["description"]


def test_only_posted(lead: Lead):
    assert httpx.get(f"{lead.url}/rpc").status_code == 405


def test_server_defaults_apply_to_rpc(lead: Lead):
    assert lead.services.defaults == SamplingParams(0.0)
    assert (
        result(lead, "get_completion", {"prompt": PROMPT, "n_predict": 40})["content"]
        == completion(lead)["content"]
    )
