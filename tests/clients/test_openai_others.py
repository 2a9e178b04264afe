"""What else the official SDK reaches: responses, embeddings, models, legacy completions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Annotated, Any, Literal

import openai
import pytest
from openai.types import CompletionChoice
from pydantic import BaseModel, Field

from server.api.services import Embedding, ModelCard
from server.llama.embedding_worker import EmbeddingWorker
from tests.clients.written import Written, writing
from tests.toy_embedder import FakeEmbedder

HELLO = "hello there"
CALL = '<tool_call>\n{"name": "Weather", "arguments": {"city": "Rome"}}\n</tool_call>'


class Pet(BaseModel):
    kind: Literal["cat", "dog"]
    name: Annotated[str, Field(max_length=5)]


class Weather(BaseModel):
    city: Literal["Paris", "Rome"]


@pytest.fixture
def embedding() -> Iterator[Embedding]:
    with closing(EmbeddingWorker(FakeEmbedder())) as worker:
        yield Embedding(worker, ModelCard("toy-embedder", 1, 64, 1000, "a toy"))


def sdk(lead: Written) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{lead.url}/v1", api_key="none", max_retries=0, timeout=30)


def test_a_response_and_its_events(client: openai.OpenAI):
    asked: Any = {"model": "toy", "input": HELLO, "max_output_tokens": 20}
    whole = client.responses.create(**asked, stream=False)
    assert whole.status == "incomplete"
    assert whole.output_text
    events = list(client.responses.create(**asked, stream=True))
    assert events[0].type == "response.created"
    assert "".join(e.delta for e in events if e.type == "response.output_text.delta") == whole.output_text
    assert events[-1].type == "response.incomplete"
    assert events[-1].response.output_text == whole.output_text
    with client.responses.stream(model="toy", input=HELLO) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    assert kinds[-1] == "response.completed"
    assert final.status == "completed"
    assert final.usage


def test_response_lives_until_deleted(client: openai.OpenAI):
    first = client.responses.create(model="toy", input=HELLO, max_output_tokens=8)
    assert client.responses.retrieve(first.id).output_text == first.output_text
    more = client.responses.create(
        model="toy", input="go on", previous_response_id=first.id, max_output_tokens=8
    )
    assert first.usage
    assert more.usage
    assert more.usage.input_tokens_details.cached_tokens >= first.usage.total_tokens - 1
    client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(first.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.create(model="toy", input="go on", previous_response_id=first.id)


def test_a_response_is_parsed(client: openai.OpenAI):
    parsed = client.responses.parse(model="toy", input=HELLO, text_format=Pet)
    assert isinstance(parsed.output_parsed, Pet)
    with client.responses.stream(model="toy", input=HELLO, text_format=Pet) as stream:
        final = stream.get_final_response()
    assert isinstance(final.output_parsed, Pet)


def test_response_calls_a_function():
    with writing(f"<think>hm</think>Let me see.\n{CALL}", "Clear.") as lead, sdk(lead) as client:
        tools: Any = [openai.pydantic_function_tool(Weather)["function"] | {"type": "function"}]
        with client.responses.stream(model="toy", input=HELLO, tools=tools) as stream:
            events = list(stream)
            first = stream.get_final_response()
        assert [item.type for item in first.output] == ["reasoning", "message", "function_call"]
        (call,) = [item for item in first.output if item.type == "function_call"]
        assert call.arguments == '{"city": "Rome"}'
        pieces = [e.delta for e in events if e.type == "response.function_call_arguments.delta"]
        assert "".join(pieces) == call.arguments
        history: list[Any] = [
            {"role": "user", "content": HELLO},
            *first.output,
            {"type": "function_call_output", "call_id": call.call_id, "output": "a clear sky"},
        ]
        second = client.responses.create(model="toy", input=history, tools=tools)
        assert second.output_text == "Clear."
        assert f"Let me see.\n{CALL}" in lead.prompts[1]
        assert "<tool_response>\na clear sky\n</tool_response>" in lead.prompts[1]


def test_embeddings_in_both_encodings(embedding: Embedding):
    texts = ["one", "two words"]
    with writing(embedding=embedding) as lead, sdk(lead) as client:
        packed = client.embeddings.create(model="toy-embedder", input=texts)  # base64, on the wire
        plain = client.embeddings.create(model="toy-embedder", input=texts, encoding_format="float")
        for one, other in zip(packed.data, plain.data, strict=True):
            assert one.embedding == pytest.approx(other.embedding, abs=1e-7)
        assert [one.index for one in packed.data] == [0, 1]
        assert packed.usage.prompt_tokens == sum(map(len, texts))
        short = client.embeddings.create(model="toy-embedder", input=list(b"one"), dimensions=4)
        assert len(short.data[0].embedding) == 4
        with pytest.raises(openai.BadRequestError) as caught:
            client.embeddings.create(model="toy-embedder", input="x" * 65)
        assert caught.value.code == "context_length_exceeded"


def test_models(client: openai.OpenAI, embedding: Embedding):
    (model,) = client.models.list()
    assert client.models.retrieve(model.id) == model
    assert (model.id, model.object) == ("toy", "model")
    with writing(embedding=embedding) as lead, sdk(lead) as other:
        assert [one.id for one in other.models.list()] == ["toy", "toy-embedder"]


def _only(completion: Any) -> CompletionChoice:
    [choice] = completion.choices
    return choice


def test_legacy_completions(client: openai.OpenAI):
    asked: Any = {"model": "toy", "prompt": ["a prompt", "another one"], "n": 2, "seed": 5, "temperature": 1}
    asked |= {"extra_body": {"ignore_eos": True}, "max_tokens": 16}
    whole = client.completions.create(**asked, stream=False)
    assert [choice.index for choice in whole.choices] == [0, 1, 2, 3]
    streamed = [""] * 4
    for chunk in client.completions.create(**asked, stream=True):
        for choice in chunk.choices:
            streamed[choice.index] += choice.text
    assert streamed == [choice.text for choice in whole.choices]
    assert whole.usage
    assert whole.usage.completion_tokens == 4 * 16
    alone: Any = {"model": "toy", "prompt": "a prompt", "max_tokens": 16, "logprobs": 2}
    told, echoed = (_only(client.completions.create(**alone, echo=echo)) for echo in (False, True))
    assert told.logprobs
    assert "".join(told.logprobs.tokens or ()) == told.text
    assert [len(one) for one in told.logprobs.top_logprobs or ()] == [2] * 16
    assert echoed.logprobs
    assert echoed.text == "".join(echoed.logprobs.tokens or ()) == "a prompt" + told.text
