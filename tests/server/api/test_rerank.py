"""/v1/rerank over a toy that scores an input by its share of the letter e."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import closing
from dataclasses import replace
from typing import Any

import httpx
import pytest

from server.api.services import Embedding, ModelCard
from server.llama.embedding_worker import EmbeddingWorker
from tests.contract.contract import validate
from tests.http_lead import Lead
from tests.server.api.scripted import Script, services
from tests.server.api.slots_scene import app_of
from tests.toy_embedder import FakeEmbedder

TEXTS = ["see", "eee", "sssss"]


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    with closing(FakeEmbedder(ranks=True, n_embd=1)) as ranker, closing(EmbeddingWorker(ranker)) as worker:
        reranking = Embedding(worker, ModelCard("toy-ranker", 1, 64, 1000, "a toy"))
        transport = httpx.ASGITransport(app_of(replace(services(Script()), reranking=reranking)))
        async with httpx.AsyncClient(transport=transport, base_url="http://duo") as one:
            yield one


async def ranked(client: httpx.AsyncClient, path: str = "/v1/rerank", **body: Any) -> Any:
    validate("RerankRequest", body)
    response = await client.post(path, json=body)
    assert response.status_code == 200, response.text
    validate("Reranked", response.json())
    return response.json()


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank", "/reranking", "/v1/reranking"])
async def test_the_best_document_comes_first(client: httpx.AsyncClient, path: str):
    reply = await ranked(client, path, query="q", documents=TEXTS, model="toy-ranker")
    assert [one["index"] for one in reply["results"]] == [1, 0, 2]
    assert [one["relevance_score"] for one in reply["results"]] == pytest.approx([3 / 5, 2 / 5, 0])
    assert (reply["object"], reply["model"]) == ("list", "toy-ranker")
    assert reply["usage"] == {"prompt_tokens": 5 + 5 + 7, "total_tokens": 5 + 5 + 7}


async def test_texts_ask_for_teis_form(client: httpx.AsyncClient):
    reply = await ranked(client, query="q", texts=TEXTS, return_text=True)
    assert [(one["index"], one["text"]) for one in reply] == [(1, "eee"), (0, "see"), (2, "sssss")]
    assert reply[0]["score"] == pytest.approx(3 / 5)
    assert set((await ranked(client, query="q", texts=TEXTS))[0]) == {"index", "score"}


@pytest.mark.parametrize(("top_n", "n"), [(None, 3), (2, 2), (99, 3), (0, 0)])
async def test_top_n_is_how_many_are_told(client: httpx.AsyncClient, top_n: int | None, n: int):
    assert len((await ranked(client, query="q", documents=TEXTS, top_n=top_n))["results"]) == n
    assert len(await ranked(client, query="q", texts=TEXTS, top_n=top_n)) == n


async def test_documents_return_on_request(client: httpx.AsyncClient):
    reply = await ranked(client, query="q", documents=TEXTS, return_documents=True)
    assert reply["results"][0]["document"] == {"text": "eee"}


async def test_ranker_is_listed_once(client: httpx.AsyncClient):
    assert [one["id"] for one in (await client.get("/v1/models")).json()["data"]] == ["toy", "toy-ranker"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        *(({"documents": wrong}, "documents") for wrong in ([], None, 123, [1, 2])),
        ({"query": None, "documents": ["a"]}, "query"),
        ({"query": ["a"], "documents": ["a"]}, "query"),
        ({"query": "", "documents": [""]}, "query"),
        ({"documents": ["a" * 64]}, "query"),
        ({"documents": ["a"], "top_n": -1}, "top_n"),
    ],
)
async def test_unrankable_input_is_refused(client: httpx.AsyncClient, body: dict[str, Any], param: str):
    response = await client.post("/v1/rerank", json={"query": "q", **body})
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"].startswith(param)


def test_missing_ranker_explains_itself(lead: Lead):
    response = httpx.post(f"{lead.url}/v1/rerank", json={"query": "q", "documents": ["a"]})
    assert response.status_code == 501
    assert "--rerank-model" in response.json()["error"]["message"]
