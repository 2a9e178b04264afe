"""Beam search and context shift as a client asks for them."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import Any

import httpx
import pytest

from server.engine.events import Finished, Started, Stats
from server.engine.request import GenerationRequest
from tests.contract.contract import validate
from tests.fake_backend import FakeBackend, FakeModel, FakeVocabulary
from tests.http_lead import Lead, serving
from tests.server.api.scripted import Call, Script, services
from tests.server.api.test_chat import chunks_of

N_CTX = 128
BODY: dict[str, Any] = {"messages": [{"role": "user", "content": "hello there"}], "max_tokens": 300}


@pytest.fixture(scope="module")
def small() -> Generator[Lead]:
    """Yield a lead with a short context, four slots, and a sequence for each."""
    with serving(FakeBackend(FakeModel(eog_rate=0.0), n_ctx=N_CTX, n_seqs=4)) as lead:
        yield lead
        lead.until_idle()


def post(lead: Lead, **fields: Any) -> httpx.Response:
    body = {**BODY, **fields}
    validate("ChatRequest", body)
    return httpx.post(f"{lead.url}/v1/chat/completions", json=body, timeout=20)


def completion(lead: Lead, **fields: Any) -> dict[str, Any]:
    response = post(lead, **fields)
    assert response.status_code == 200, response.text
    validate("ChatCompletion", response.json())
    return response.json()


def text_of(body: dict[str, Any]) -> str:
    return body["choices"][0]["message"]["content"]


def streamed(lead: Lead, **fields: Any) -> str:
    chunks = chunks_of(post(lead, stream=True, **fields))
    return "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks)


async def asked(vocabulary: FakeVocabulary | None = None, **fields: Any) -> GenerationRequest:
    script = Script(Started(5, 2), Finished("stop", Stats(5, 2, 1, 1, 1.0, 1.0)))
    call = Call(services(script, vocabulary=vocabulary), body={**BODY, **fields})
    await asyncio.wait_for(call.run(), 10)
    assert call.status == 200, call.json
    return script.requests[0]


def test_context_shift_outlasts_the_context(small: Lead):
    body = completion(small, context_shift=True)
    assert body["usage"]["completion_tokens"] == 300
    assert body["choices"][0]["finish_reason"] == "length"
    assert body["metrics"]["truncated"] is True
    assert len(text_of(body)) == 300
    assert streamed(small, context_shift=True) == text_of(body)
    kept = completion(small, context_shift=True, n_keep=-1)
    n = N_CTX - body["usage"]["prompt_tokens"]
    assert text_of(kept)[:n] == text_of(body)[:n]
    assert text_of(kept) != text_of(body)


@pytest.mark.parametrize("n_predict", [10, 300])
def test_dropped_tokens_are_not_cached(small: Lead, n_predict: int):
    body = {"prompt": "x" * 20, "n_predict": n_predict, "context_shift": True, "temperature": 0}
    told = httpx.post(f"{small.url}/completion", json=body).json()
    assert told["truncated"] == (n_predict > N_CTX)
    n_tokens = 20
    for _ in range(n_predict):
        n_tokens -= (n_tokens - 1) // 2 if n_tokens == N_CTX else 0  # half of what is evaluated is dropped
        n_tokens += 1
    assert told["tokens_cached"] == n_tokens - 1


@pytest.mark.parametrize("fields", [{}, {"n_keep": 30}, {"context_shift": False, "n_keep": -1}])
def test_else_the_context_ends_it(small: Lead, fields: dict[str, Any]):
    body = completion(small, **fields)
    assert body["usage"]["total_tokens"] == N_CTX
    assert body["choices"][0]["finish_reason"] == "length"
    assert body["metrics"]["truncated"] is False


def test_stop_string_works_after_shift(small: Lead):
    whole = text_of(completion(small, context_shift=True))
    stop = whole[200:206]
    body = completion(small, context_shift=True, stop=stop)
    assert text_of(body) == whole[: whole.find(stop)]
    assert body["usage"]["completion_tokens"] == whole.find(stop) + len(stop)
    small.until_idle()


def test_too_long_prompt_stays_400(small: Lead):
    response = post(small, context_shift=True, messages=[{"role": "user", "content": "x" * 200}])
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "context_length_exceeded"


class WithBos(FakeVocabulary):
    bos = 1  # pyright: ignore[reportAssignmentType]
    add_bos = True


async def test_n_keep_matches_llama_server():
    assert (await asked()).n_keep is None
    assert (await asked(n_keep=9)).n_keep is None
    assert (await asked(context_shift=True)).n_keep == 0
    assert (await asked(context_shift=True, n_keep=9)).n_keep == 9
    assert (await asked(WithBos(), context_shift=True, n_keep=9)).n_keep == 10
    for vocabulary in (None, WithBos()):
        whole = await asked(vocabulary, context_shift=True, n_keep=-1)
        assert whole.n_keep == len(whole.prompt)


async def test_one_beam_is_no_search():
    assert [(await asked(n_beams=n)).n_beams for n in (0, 1, 2, 8)] == [1, 1, 2, 8]
    assert (await asked(n_beams=2, temperature=1.5, top_k=3, seed=1)).n_beams == 2


def test_beam_search_ignores_the_seed(small: Lead):
    texts = {
        text_of(completion(small, n_beams=4, max_tokens=40, temperature=1.0, seed=seed)) for seed in (1, 2)
    }
    assert len(texts) == 1
    assert texts != {text_of(completion(small, temperature=0.0, max_tokens=40))}


def test_a_beam_search_streams_what_is_decided(small: Lead):
    fields: dict[str, Any] = {"n_beams": 3, "max_tokens": 40, "logprobs": True, "return_tokens": True}
    body = completion(small, **fields)
    chunks = chunks_of(post(small, stream=True, **fields))
    tokens: list[int] = []
    for chunk in chunks:
        tokens += chunk["choices"][0].get("tokens") or []
    assert tokens == body["choices"][0]["tokens"] == list(text_of(body).encode())
    assert len(body["choices"][0]["logprobs"]["content"]) == body["usage"]["completion_tokens"] == 40


def test_too_many_beams_are_refused(small: Lead):
    response = post(small, n_beams=5)
    assert response.status_code == 400
    validate("Error", response.json())
    assert response.json()["error"]["param"] == "n_beams"


def test_leaving_client_frees_its_search(small: Lead):
    with httpx.stream(
        "POST", f"{small.url}/v1/chat/completions", json={**BODY, "n_beams": 4, "stream": True}
    ) as response:
        next(response.iter_raw())
    small.until_idle()
