"""/v1/embeddings over the toy embedder: OpenAI's SDK and plain HTTP, the queue, and who is in whose way."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from typing import Any

import httpx
import numpy as np
import numpy.typing as npt
import openai
import pytest

from server.api.services import Embedding, ModelCard
from server.engine.events import Committed, Finished, Started
from server.llama.embedding_worker import EmbeddingWorker, grouped
from tests.contract.contract import validate
from tests.fake_backend import FakeBackend, FakeModel
from tests.http_lead import Lead, serving
from tests.server.api.scripted import CANCELLED_STATS, Call, Script, services
from tests.server.api.slots_scene import app_of
from tests.toy_embedder import FakeEmbedder


@pytest.fixture
def embedder() -> Iterator[FakeEmbedder]:
    one = FakeEmbedder()
    yield one
    one.close()
    one.held.set()


@pytest.fixture
def worker(embedder: FakeEmbedder) -> Iterator[EmbeddingWorker]:
    with closing(EmbeddingWorker(embedder, max_queued=2)) as one:
        yield one
        embedder.close()


@pytest.fixture
async def client(worker: EmbeddingWorker) -> AsyncIterator[httpx.AsyncClient]:
    async with asking(worker) as one:
        yield one


@asynccontextmanager
async def asking(worker: EmbeddingWorker) -> AsyncGenerator[httpx.AsyncClient]:
    script = Script(Started(5, 2), Committed((97,), (None,)), Finished("stop", CANCELLED_STATS))
    embedding = Embedding(worker, ModelCard("toy-embedder", 1, 64, 1000, "a toy"))
    transport = httpx.ASGITransport(app_of(replace(services(script), embedding=embedding)))
    async with httpx.AsyncClient(transport=transport, base_url="http://duo") as one:
        yield one


async def embedded(client: httpx.AsyncClient, **body: Any) -> dict[str, Any]:
    validate("EmbeddingRequest", body)
    response = await client.post("/v1/embeddings", json=body)
    assert response.status_code == 200, response.text
    validate("EmbeddingList", response.json())
    return response.json()


async def refused(client: httpx.AsyncClient, status: int, **body: Any) -> dict[str, Any]:
    response = await client.post("/v1/embeddings", json=body)
    assert response.status_code == status, response.text
    validate("Error", response.json())
    return response.json()["error"]


def vectors(reply: dict[str, Any]) -> npt.NDArray[np.float32]:
    return np.array([entry["embedding"] for entry in reply["data"]], dtype=np.float32)


async def test_vector_has_length_one(client: httpx.AsyncClient, embedder: FakeEmbedder):
    reply = await embedded(client, input="hello", model="toy-embedder")
    assert np.linalg.norm(vectors(reply)[0]) == pytest.approx(1, abs=1e-6)
    assert vectors(reply).shape == (1, embedder.n_embd)
    assert reply["model"] == "toy-embedder"
    assert reply["usage"] == {"prompt_tokens": 5, "total_tokens": 5}
    assert np.allclose(vectors(reply)[0], embedder.embed([list(b"hello")])[0])


AS_PART = {"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}


@pytest.mark.parametrize(
    "input",
    [
        *("ab", [97, 98], ["ab"], [[97, 98]], ["a", 98], [["a", 98]]),
        *({"prompt_string": "ab"}, [{"prompt_string": "ab"}], AS_PART, [AS_PART]),
    ],
    ids=str,
)
async def test_input_forms_give_one_vector(client: httpx.AsyncClient, input: object):
    reply = await embedded(client, input=input)
    assert np.array_equal(vectors(reply), vectors(await embedded(client, input="ab")))
    assert reply["usage"]["prompt_tokens"] == 2


@pytest.mark.parametrize(
    ("path", "name"), [("/embedding", "input"), ("/embedding", "content"), ("/v1/embeddings", "content")]
)
async def test_llama_servers_form(client: httpx.AsyncClient, path: str, name: str):
    response = await client.post(path, json={name: ["ab", "cd"], "embd_normalize": 2})
    validate("NativeEmbeddings", response.json())
    plain = vectors(await embedded(client, input=["ab", "cd"]))
    assert [entry["index"] for entry in response.json()] == [0, 1]
    told = np.array([entry["embedding"] for entry in response.json()], dtype=np.float32)
    assert np.array_equal(told, plain[:, None])
    refused = await client.post(path, json={name: "ab", "embd_normalize": -1})
    assert refused.json()["error"]["param"] == "embd_normalize"


async def test_inputs_keep_order_in_groups(client: httpx.AsyncClient, embedder: FakeEmbedder):
    texts = [chr(97 + i) * (1 + 7 * (i % 4)) for i in range(20)]
    reply = await embedded(client, input=texts)
    assert [entry["index"] for entry in reply["data"]] == list(range(20))
    assert max(embedder.sizes) <= embedder.n_seqs
    assert sum(embedder.sizes) == 20
    for text, vector in zip(texts, vectors(reply), strict=True):
        assert np.array_equal(vector, vectors(await embedded(client, input=text))[0])


async def test_base64_says_the_same_numbers(client: httpx.AsyncClient):
    plain = vectors(await embedded(client, input=["one", "two"]))
    reply = await embedded(client, input=["one", "two"], encoding_format="base64")
    for entry, vector in zip(reply["data"], plain, strict=True):
        assert np.array_equal(np.frombuffer(base64.b64decode(entry["embedding"]), dtype="<f4"), vector)


@pytest.mark.parametrize("form", ["float", "base64"])
async def test_fewer_dimensions_are_normalised(client: httpx.AsyncClient, form: str):
    whole = vectors(await embedded(client, input="hello"))[0]
    reply = await embedded(client, input="hello", dimensions=5, encoding_format=form)
    data = reply["data"][0]["embedding"]
    short = np.array(data) if form == "float" else np.frombuffer(base64.b64decode(data), dtype="<f4")
    assert np.allclose(short, whole[:5] / np.linalg.norm(whole[:5]), atol=1e-6)


async def test_the_sdk(client: httpx.AsyncClient):
    http: Any = client  # of one of the libraries that the SDK can use
    async with openai.AsyncOpenAI(base_url="http://duo/v1", api_key="none", http_client=http) as sdk:
        asked: Any = {"model": "default", "input": ["one", "two"]}
        by_default = await sdk.embeddings.create(**asked)  # which asks for base64
        as_floats = await sdk.embeddings.create(**asked, encoding_format="float")
        assert by_default.data[1].embedding == pytest.approx(as_floats.data[1].embedding, abs=1e-7)
        with pytest.raises(openai.NotFoundError):
            await sdk.embeddings.create(model="text-embedding-3-small", input="one")


@pytest.mark.parametrize("model", ["toy-embedder", "toy", "default", None])
async def test_names_that_it_answers_to(client: httpx.AsyncClient, model: str | None):
    assert (await embedded(client, input="a", model=model))["model"] == "toy-embedder"


async def test_invalid_embedding_input_is_named(client: httpx.AsyncClient, embedder: FakeEmbedder):
    too_long = await refused(client, 400, input=["a", "b" * (embedder.n_ctx + 1)])
    assert (too_long["code"], too_long["param"]) == ("context_length_exceeded", "input")
    assert "maximum context length is 64 tokens" in too_long["message"]
    assert (await refused(client, 400, input="a", dimensions=17))["param"] == "dimensions"
    assert (await refused(client, 400, input="a", dimensions=0))["param"] == "dimensions"
    assert (await refused(client, 400, input="a", encoding_format="hex"))["param"] == "encoding_format"
    picture = {"content": [{"type": "image_url", "text": "a"}]}
    wrong: tuple[Any, ...] = (picture, "", [], [""], [[]], [300], [[97], [259]], [[None]], 3, ["a"] * 2049)
    for input in wrong:
        assert ((await refused(client, 400, input=input))["param"] or "").startswith("input"), input
    assert (await refused(client, 400))["param"] == "input"
    assert (await refused(client, 404, input="a", model="other"))["code"] == "model_not_found"


@pytest.mark.parametrize("prefix", ["", "/v1"])
def test_disabled_embedding_explains_itself(lead: Lead, prefix: str):
    response = httpx.post(f"{lead.url}{prefix}/embeddings", json={"input": "a"})
    assert response.status_code == 501
    validate("Error", response.json())
    assert "--no-embeddings" in response.json()["error"]["message"]


async def until_working(embedder: FakeEmbedder) -> None:
    async with asyncio.timeout(10):
        while not embedder.sizes:
            await asyncio.sleep(0.001)


async def test_embedding_queue_is_bounded(client: httpx.AsyncClient, embedder: FakeEmbedder):
    embedder.held.clear()
    first = asyncio.create_task(embedded(client, input="first"))
    second = asyncio.create_task(embedded(client, input="second"))
    await until_working(embedder)
    busy = await client.post("/v1/embeddings", json={"input": "third"})
    assert busy.status_code == 429
    assert busy.headers["retry-after"]
    chat = await client.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": "hi"}]})
    assert chat.status_code == 200
    assert not first.done()
    embedder.held.set()
    assert (await first)["usage"]["prompt_tokens"] == 5
    assert (await second)["usage"]["prompt_tokens"] == 6
    assert await embedded(client, input="third")
    assert {name.startswith("duo-embed") for name in embedder.threads} == {True}


async def test_embedding_holds_up_no_step(worker: EmbeddingWorker, embedder: FakeEmbedder):
    embedder.held.clear()
    embedding = Embedding(worker, ModelCard("toy-embedder", 1, 64, 1000, "a toy"))
    with serving(FakeBackend(FakeModel(eog_rate=0.0)), embedding=embedding) as lead:
        async with httpx.AsyncClient(base_url=lead.url, timeout=30) as client:
            inputs = asyncio.create_task(embedded(client, input=["a"] * 40))
            await until_working(embedder)
            prompt = {"prompt": "Once upon", "n_predict": 100}
            reply = await client.post("/completion", json=prompt)
            assert reply.json()["timings"]["predicted_n"] == 100
            assert not inputs.done()
            embedder.held.set()
            assert len((await inputs)["data"]) == 40


async def test_leaving_client_ends_embedding(worker: EmbeddingWorker, embedder: FakeEmbedder):
    embedder.held.clear()
    embedding = Embedding(worker, ModelCard("toy-embedder", 1, 64, 1000, "a toy"))
    state = replace(services(Script()), embedding=embedding)
    call = Call(state, path="/v1/embeddings", body={"input": ["a"] * 40})
    running = asyncio.create_task(call.run())
    await until_working(embedder)
    call.gone.set()
    await running
    embedder.held.set()
    assert (await worker.embed([[97]])).shape == (1, embedder.n_embd)
    assert embedder.sizes == [4, 1]


async def test_a_server_that_ends_takes_nothing_new(worker: EmbeddingWorker):
    worker.close()
    async with asking(worker) as client:
        response = await client.post("/v1/embeddings", json={"input": "a"})
        assert response.status_code == 503


def test_groups_fill_up_in_order():
    inputs = [[0] * n for n in (3, 3, 3, 8, 1, 1, 1, 1, 8)]
    assert [[len(one) for one in group] for group in grouped(inputs, 8, 3)] == [
        [3, 3],
        [3],
        [8],
        [1, 1, 1],
        [1],
        [8],
    ]
    assert list(grouped([], 8, 3)) == []
