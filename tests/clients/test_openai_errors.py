"""What the official SDK makes of refusals, failures and slowness: its exceptions, retries and timeouts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletion

from server.api.access import Access
from server.api.middleware import Edge
from server.engine.thread import Bounds
from server.errors import BackendError
from server.lead.listening import ClientPolicy
from tests.clients.written import writing
from tests.fake_backend import FakeBackend, FakeModel
from tests.http_lead import Lead, serving
from tests.support import ENDLESS

HELLO: list[Any] = [{"role": "user", "content": "hello there"}]
LONG: Any = {"model": "toy", "messages": HELLO}
"""Which slow_lead never ends."""
SHORT: Any = {**LONG, "max_tokens": 3}


@dataclass(slots=True)
class Attempts:
    """What the SDK has sent: when each attempt was answered, with what, and its retry count."""

    times: list[float] = field(default_factory=list[float])
    statuses: list[int] = field(default_factory=list[int])
    counts: list[str] = field(default_factory=list[str])
    refused: asyncio.Event = field(default_factory=asyncio.Event)

    async def note(self, response: Any) -> None:
        self.times.append(time.monotonic())
        self.statuses.append(response.status_code)
        self.counts.append(response.request.headers["x-stainless-retry-count"])
        if response.status_code >= 400:
            self.refused.set()


@asynccontextmanager
async def asking(
    url: str, attempts: Attempts | None = None, **how: Any
) -> AsyncGenerator[openai.AsyncOpenAI]:
    hooks: Any = {"response": [attempts.note] if attempts else []}
    http = openai.DefaultAsyncHttpxClient(event_hooks=hooks)
    asked: Any = {"max_retries": 0, "timeout": 30, **how}
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", http_client=http, **asked) as client:
        yield client


async def ask(client: openai.AsyncOpenAI, fields: dict[str, Any]) -> ChatCompletion:
    return await client.chat.completions.create(**fields, stream=False)


@asynccontextmanager
async def crowd(lead: Lead, client: openai.AsyncOpenAI) -> AsyncGenerator[Callable[[], None]]:
    """Run one request and queue another, all that slow_lead takes, and yield what sends them away."""
    tasks = [asyncio.create_task(ask(client, LONG)) for _ in range(2)]

    def leave() -> None:
        for task in tasks:
            task.cancel()

    try:
        await asyncio.to_thread(lead.until, lambda engine: engine.n_active == 1 and lead.thread.n_live == 2)
        yield leave
    finally:
        leave()
        await asyncio.gather(*tasks, return_exceptions=True)


def test_a_wrong_request_names_the_field(client: openai.OpenAI):
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="toy", messages=HELLO, temperature=-1)
    error = caught.value
    assert (error.status_code, error.param, error.type) == (400, "temperature", "invalid_request_error")
    assert "temperature" in error.message
    assert error.request_id
    assert error.request_id.startswith("req_")
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="toy", messages=[{"role": "user", "content": "x" * 5000}])
    assert caught.value.code == "context_length_exceeded"
    assert "maximum context length is 4096 tokens" in caught.value.message


def test_wrong_request_fails_before_streaming(client: openai.OpenAI):
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(model="toy", messages=[], stream=True)


def test_unknown_names_raise_not_found(client: openai.OpenAI):
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(model="gpt-4o", messages=HELLO)
    assert (caught.value.code, caught.value.param) == ("model_not_found", "model")
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-4o")
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve("resp_unknown")
    with pytest.raises(openai.NotFoundError):
        client.files.list()


def test_a_wrong_key():
    door = ClientPolicy(Edge(access=Access(["sk-right"])), None, 0)
    with (
        serving(FakeBackend(FakeModel(seed=3)), door=door) as lead,
        openai.OpenAI(base_url=f"{lead.url}/v1", api_key="sk-wrong", max_retries=0) as client,
    ):
        with pytest.raises(openai.AuthenticationError) as caught:
            client.chat.completions.create(**SHORT)
        assert caught.value.code == "invalid_api_key"
        assert client.with_options(api_key="sk-right").chat.completions.create(**SHORT).choices


async def test_a_full_queue_is_a_rate_limit(slow_lead: Lead):
    async with asking(slow_lead.url) as client, crowd(slow_lead, client):
        with pytest.raises(openai.RateLimitError) as caught:
            await ask(client, SHORT)
    assert caught.value.response.headers["retry-after"] == "1"
    assert caught.value.type == "rate_limit_error"
    slow_lead.until_idle()


async def test_sdk_retries_when_told(slow_lead: Lead):
    attempts = Attempts()
    async with (
        asking(slow_lead.url) as others,
        asking(slow_lead.url, attempts, max_retries=2) as client,
        crowd(slow_lead, others) as leave,
    ):
        reply = asyncio.create_task(ask(client, SHORT))
        await asyncio.wait_for(attempts.refused.wait(), 10)
        leave()
        assert (await asyncio.wait_for(reply, 20)).usage
    assert attempts.statuses == [429, 200]
    assert attempts.counts == ["0", "1"]
    assert attempts.times[1] - attempts.times[0] > 0.95  # of itself it waits for at most half a second
    slow_lead.until_idle()


async def test_failure_is_retried_then_raised():
    attempts, failure = Attempts(), BackendError("the model stumbled")
    with writing(failure, "well", failure) as lead:
        async with asking(lead.url, attempts, max_retries=1) as client:
            reply = await ask(client, LONG)
            assert reply.choices[0].message.content == "well"
            with pytest.raises(openai.InternalServerError) as caught:
                await ask(client.with_options(max_retries=0), LONG)
    assert attempts.statuses == [500, 200, 500]
    assert caught.value.status_code == 500
    assert caught.value.type == "server_error"


async def test_a_failure_within_a_stream_ends_it():
    texts: list[str | None] = []

    async def read() -> None:
        async with asking(lead.url) as client:
            async for chunk in await client.chat.completions.create(**LONG, stream=True):
                texts.append(chunk.choices[0].delta.content)  # noqa: PERF401 - kept if the next one fails

    with writing(("so far", BackendError("the model stumbled"))) as lead:
        with pytest.raises(openai.APIError, match="stumbled") as caught:
            await read()
    assert "".join(filter(None, texts)) == "so far"
    assert caught.value.type == "server_error"


async def test_a_server_that_ends_is_not_available():
    backend = FakeBackend(FakeModel(eog_rate=0.0), n_ctx=ENDLESS, n_cells=ENDLESS, step_s=0.005)
    with serving(backend, door=ClientPolicy(Edge(), None, grace_s=20)) as lead:
        async with asking(lead.url) as client:
            async with await client.chat.completions.create(**LONG, stream=True):
                await client.models.list()  # a connection is there before the socket is closed
                lead.thread.drain()
                with pytest.raises(openai.InternalServerError) as caught:
                    await ask(client, SHORT)
            assert caught.value.status_code == 503
            assert caught.value.response.headers["retry-after"]


async def test_unimplemented_and_slow_are_final(lead: Lead):
    attempts = Attempts()
    async with asking(lead.url, attempts, max_retries=2) as client:
        with pytest.raises(openai.InternalServerError, match="--no-embeddings"):
            await client.embeddings.create(model="toy", input="a")
    backend = FakeBackend(FakeModel(eog_rate=0.0), n_ctx=ENDLESS, n_cells=ENDLESS, step_s=0.005)
    with serving(backend, bounds=Bounds(time_s=0.1)) as limited:
        async with asking(limited.url, attempts, max_retries=2) as client:
            with pytest.raises(openai.InternalServerError):
                await ask(client, LONG)
    assert attempts.statuses == [501, 504]


async def test_timed_out_client_frees_slot(slow_lead: Lead):
    async with asking(slow_lead.url, timeout=0.2) as client:
        with pytest.raises(openai.APITimeoutError):
            await ask(client, LONG)
    await asyncio.to_thread(slow_lead.until_idle)


async def test_closed_stream_frees_slot(slow_lead: Lead):
    async with asking(slow_lead.url) as client:
        stream = await client.chat.completions.create(**LONG, stream=True)
        async for chunk in stream:
            if chunk.choices[0].delta.content:
                break
        assert slow_lead.thread.engine.n_active == 1
        await stream.close()
        await asyncio.to_thread(slow_lead.until_idle)
        async with client.responses.stream(model="toy", input="hello") as events:
            async for event in events:
                if event.type == "response.output_text.delta":
                    break
            assert slow_lead.thread.engine.n_active == 1
        await asyncio.to_thread(slow_lead.until_idle)


def test_closed_synchronous_stream_frees_slot(slow_lead: Lead):
    with openai.OpenAI(base_url=f"{slow_lead.url}/v1", api_key="none", max_retries=0) as client:
        with client.chat.completions.create(**LONG, stream=True) as stream:
            next(iter(stream))
        slow_lead.until_idle()


async def test_a_cancelled_task_frees_the_slot(slow_lead: Lead):
    async with asking(slow_lead.url) as client:
        task = asyncio.create_task(ask(client, LONG))
        await asyncio.to_thread(slow_lead.until, lambda engine: engine.n_active == 1)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await asyncio.to_thread(slow_lead.until_idle)


def test_nobody_there():
    client = openai.OpenAI(base_url="http://127.0.0.1:9/v1", api_key="none", max_retries=0)
    with client, pytest.raises(openai.APIConnectionError):
        client.models.list()
