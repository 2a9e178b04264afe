"""/v1/models, the names of a model, and what the server does for requests that do not say."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from typing import Any

import httpx
import pytest

from server.api.services import DrafterHealth, Embedding, Health, ModelCard, Services
from server.engine.events import Committed, Finished, Started
from server.llama.embedding_worker import EmbeddingWorker
from tests.contract.contract import validate
from tests.server.api.scripted import CANCELLED_STATS, Call, Script, services
from tests.server.api.slots_scene import app_of
from tests.toy_embedder import FakeEmbedder

CARD = ModelCard(
    "big",
    7,
    1024,
    10**9,
    "llama 1B Q8_0",
    aliases=("gpt", "large/one"),
    file="big.gguf",
    n_vocab=259,
    n_bytes=10**9,
    quantization="Q8_0",
)
EMBEDS = ModelCard("small", 7, 64, 1000, "a toy")
DRAFTERS = (DrafterHealth("a", "tiny", "accepted"), DrafterHealth("b", "other", "refused", "vocabulary"))
HELLO = {"messages": [{"role": "user", "content": "hi"}]}


def state(*, embedding: Embedding | None = None, **changes: Any) -> Services:
    health = Health("ok", 1, 0, 0, 0.0, DRAFTERS)
    script = Script(Started(5, 2), Committed((97,), (None,)), Finished("stop", CANCELLED_STATS))
    return replace(services(script, health=health), model=CARD, embedding=embedding, **changes)


@asynccontextmanager
async def asking(one: Services) -> AsyncGenerator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app_of(one))
    async with httpx.AsyncClient(transport=transport, base_url="http://duo") as client:
        yield client


async def test_model_reports_size_and_drafters():
    async with asking(state()) as client:
        [model] = (await client.get("/v1/models")).json()["data"]
        validate("Model", model)
        assert model["id"] == "big"
        assert model["meta"] == {
            "n_ctx": 1024,
            "n_vocab": 259,
            "n_params": 10**9,
            "size": 10**9,
            "quantization": "Q8_0",
            "description": "llama 1B Q8_0",
            "note": None,
            "aliases": ["gpt", "large/one"],
            "draft": {"mode": "async", "drafters": 1},
        }


@pytest.mark.parametrize("headers", [{}, {"anthropic-version": "2023-06-01"}], ids=str)
@pytest.mark.parametrize("path", ["/v1/models/", "/models/"])
async def test_a_slash_at_the_end_changes_nothing(path: str, headers: dict[str, str]):
    async with asking(state()) as client:
        reply = await client.get(path, headers=headers)
        assert reply.status_code == 200
        assert reply.json() == (await client.get("/v1/models", headers=headers)).json()


@pytest.mark.parametrize("name", ["big", "gpt", "large/one", "default"])
async def test_model_answers_to_all_aliases(name: str):
    async with asking(state()) as client:
        assert (await client.get(f"/v1/models/{name}")).json()["id"] == "big"
        reply = await client.post("/v1/chat/completions", json={**HELLO, "model": name})
        assert reply.status_code == 200, reply.text
        assert reply.json()["model"] == "big"
        other = await client.post("/v1/chat/completions", json={**HELLO, "model": "large"})
        assert other.status_code == 404
        assert (await client.get("/v1/models/large")).status_code == 404


async def test_embedding_model_is_listed():
    with closing(EmbeddingWorker(FakeEmbedder())) as worker:
        async with asking(state(embedding=Embedding(worker, EMBEDS))) as client:
            body = (await client.get("/v1/models")).json()
            validate("ModelList", body)
            assert [model["id"] for model in body["data"]] == ["big", "small"]
            assert body["data"][1]["meta"]["draft"] is None
            assert (await client.get("/v1/models/small")).json() == body["data"][1]
            assert (await client.get("/v1/models/default")).json()["id"] == "big"
            refused = await client.post("/v1/chat/completions", json={**HELLO, "model": "small"})
            assert refused.status_code == 404
        async with asking(state(embedding=Embedding(worker, CARD))) as client:
            assert len((await client.get("/v1/models")).json()["data"]) == 1


@pytest.mark.parametrize(
    ("body", "seed", "max_tokens"),
    [
        ({}, 11, 5),
        ({"seed": 3}, 3, 5),
        ({"max_tokens": 9}, 11, 9),
        ({"seed": None, "max_tokens": None}, 11, 5),
    ],
)
async def test_server_seed_and_length_are_defaults(body: dict[str, Any], seed: int, max_tokens: int):
    one = state(seed=11, max_tokens=5)
    await Call(one, body={**HELLO, **body}).run()
    script = one.generator
    assert isinstance(script, Script)
    [request] = script.requests
    assert (request.sampling.seed, request.max_tokens) == (seed, max_tokens)


async def test_seed_minus_one_is_random():
    seeds: set[int] = set()
    for _ in range(2):
        one = state(seed=11)
        await Call(one, body={**HELLO, "seed": -1}).run()
        assert isinstance(one.generator, Script)
        seeds |= {request.sampling.seed for request in one.generator.requests}
    assert len(seeds | {11}) == 3


async def test_props_tell_the_defaults_and_no_path():
    async with asking(state(seed=11, max_tokens=5)) as client:
        props = (await client.get("/props")).json()
        validate("Props", props)
        assert (props["model_alias"], props["model_path"]) == ("big", "big.gguf")
        params = props["default_generation_settings"]["params"]
        assert (params["seed"], params["max_tokens"]) == (11, 5)
