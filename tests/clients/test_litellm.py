"""LiteLLM, which speaks to duo as to any server of OpenAI's API: `openai/` and an api_base."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Coroutine
from contextlib import closing
from typing import Any, Literal

import httpx
import pytest
from pydantic import BaseModel

from server.api.access import Access
from server.api.middleware import Edge
from server.api.services import Embedding, ModelCard
from server.errors import BusyError
from server.lead.listening import ClientPolicy
from server.llama.embedding_worker import EmbeddingWorker
from tests.clients.written import writing
from tests.fake_backend import FakeBackend, FakeModel
from tests.http_lead import Lead, serving
from tests.toy_embedder import FakeEmbedder

pytestmark = pytest.mark.filterwarnings(
    "ignore:Accessing the 'model_:pydantic.warnings.PydanticDeprecatedSince211"
)

HELLO: list[Any] = [{"role": "user", "content": "hello there"}]
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'
CITY = {"type": "object", "properties": {"city": {"enum": ["Rome", "Paris"]}}, "required": ["city"]}
TOOL = {"type": "function", "function": {"name": "weather", "parameters": CITY}}


class Pet(BaseModel):
    kind: Literal["cat", "dog"]
    wild: bool


@pytest.fixture
async def litellm(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Any]:
    """Yield the module without its accounts of replies.

    They are made in the background and may be incomplete when a test's event loop ends. Its types are not
    strict.
    """
    import litellm
    from litellm.litellm_core_utils.logging_worker import GLOBAL_LOGGING_WORKER

    def leave_out(async_coroutine: Coroutine[Any, Any, Any]) -> None:
        async_coroutine.close()

    monkeypatch.setattr(GLOBAL_LOGGING_WORKER, "ensure_initialized_and_enqueue", leave_out)
    monkeypatch.setattr(litellm, "disable_streaming_logging", True)  # an event loop in a thread of its own
    monkeypatch.setattr(litellm, "suppress_debug_info", True)
    async with httpx.AsyncClient() as later:
        with httpx.Client() as now:
            monkeypatch.setattr(litellm, "aclient_session", later)  # its own ones are never closed
            monkeypatch.setattr(litellm, "client_session", now)
            yield litellm
            litellm.in_memory_llm_clients_cache.flush_cache()


def asked(url: str, **fields: Any) -> dict[str, Any]:
    return {
        "model": "openai/toy",
        "api_base": f"{url}/v1",
        "api_key": "none",
        "messages": HELLO,
        "max_retries": 0,
        "timeout": 30,
        **fields,
    }


def test_completion(litellm: Any, lead: Lead):
    reply = litellm.completion(**asked(lead.url, max_tokens=9, temperature=1, seed=3))
    assert len(reply.choices[0].message.content) == 9
    assert reply.choices[0].finish_reason == "length"
    assert reply.usage.completion_tokens == 9
    more = {"logprobs": True, "top_logprobs": 2, "n": 2}
    several = litellm.completion(**asked(lead.url, max_tokens=9, temperature=1, seed=3, **more))
    assert several.choices[0].message.content == reply.choices[0].message.content
    assert several.choices[1].message.content != reply.choices[0].message.content
    assert len(several.choices[0].logprobs.content) == 9


def test_a_stream_says_the_same(litellm: Any, lead: Lead):
    fields = asked(lead.url, max_tokens=30)
    whole = litellm.completion(**fields)
    chunks = list(litellm.completion(**fields, stream=True, stream_options={"include_usage": True}))
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    ends = [c.choices[0].finish_reason for c in chunks if c.choices and c.choices[0].finish_reason]
    assert ends == ["length"]
    assert litellm.stream_chunk_builder(chunks, messages=HELLO).choices[0].message.content == text


async def test_acompletion(litellm: Any, lead: Lead):
    fields = asked(lead.url, max_tokens=30)
    whole = await litellm.acompletion(**fields)
    text = ""
    async for chunk in await litellm.acompletion(**fields, stream=True):
        text += chunk.choices[0].delta.content or ""
    assert text == whole.choices[0].message.content


@pytest.mark.parametrize("stream", [False, True])
def test_tools_are_called_and_their_results_told(litellm: Any, stream: bool):
    with writing(f"<think>hm</think>Let me see.\n{CALL}", "Clear.") as lead:
        reply = litellm.completion(**asked(lead.url, tools=[TOOL], stream=stream))
        if stream:
            reply = litellm.stream_chunk_builder(list(reply), messages=HELLO)
        message = reply.choices[0].message
        assert reply.choices[0].finish_reason == "tool_calls"
        assert message.reasoning_content == "hm"
        (call,) = message.tool_calls
        assert json.loads(call.function.arguments) == {"city": "Rome"}
        result = {"role": "tool", "tool_call_id": call.id, "content": "a clear sky"}
        history = [*HELLO, message.model_dump(), result]
        last = litellm.completion(**asked(lead.url, tools=[TOOL], messages=history))
        assert last.choices[0].message.content == "Clear."
        assert f"Let me see.\n{CALL}" in lead.prompts[1]
        assert "<tool_response>\na clear sky\n</tool_response>" in lead.prompts[1]


def test_replies_in_a_form(litellm: Any, lead: Lead):
    reply = litellm.completion(**asked(lead.url, response_format=Pet))
    Pet.model_validate_json(reply.choices[0].message.content)


def test_text_completion_and_responses(litellm: Any):
    with writing(" there was a king", "Good morning.") as lead:
        fields = asked(lead.url)
        del fields["messages"], fields["max_retries"]
        legacy = litellm.text_completion(**fields | {"model": "text-completion-openai/toy", "prompt": "Once"})
        assert legacy.choices[0].text == " there was a king"
        response = litellm.responses(**fields, input="hello")
        assert response.output_text == "Good morning."


async def test_embeddings(litellm: Any):
    with closing(EmbeddingWorker(FakeEmbedder())) as worker:
        embedding = Embedding(worker, ModelCard("toy-embedder", 1, 64, 1000, "a toy"))
        with writing(embedding=embedding) as lead:
            fields = asked(lead.url, model="openai/toy-embedder", input=["one", "two"])
            del fields["messages"]
            reply = litellm.embedding(**fields)
            assert [len(entry["embedding"]) for entry in reply.data] == [16, 16]
            assert reply.usage.prompt_tokens == 6
            later = await litellm.aembedding(**fields, encoding_format="float")
            assert later.data[1]["embedding"] == pytest.approx(reply.data[1]["embedding"], abs=1e-6)


def test_refusals_have_litellms_names(litellm: Any, lead: Lead):
    with pytest.raises(litellm.ContextWindowExceededError):
        litellm.completion(**asked(lead.url, messages=[{"role": "user", "content": "x" * 5000}]))
    with pytest.raises(litellm.BadRequestError):
        litellm.completion(**asked(lead.url, presence_penalty=9))
    with pytest.raises(litellm.NotFoundError):
        litellm.completion(**asked(lead.url, model="openai/other"))
    with writing(BusyError("later")) as busy, pytest.raises(litellm.RateLimitError):
        litellm.completion(**asked(busy.url))
    door = ClientPolicy(Edge(access=Access(["sk-right"])), None, 0)
    with serving(FakeBackend(FakeModel(seed=3)), door=door) as locked:
        with pytest.raises(litellm.AuthenticationError):
            litellm.completion(**asked(locked.url))
