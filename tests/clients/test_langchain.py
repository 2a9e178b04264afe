"""LangChain's ChatOpenAI and OpenAIEmbeddings."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Annotated, Any, Literal, TypeAlias, cast

import numpy as np
import openai
import pytest
from langchain_core.messages import (
    AIMessageChunk,
    BaseMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
)
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from pydantic import BaseModel, Field

from server.api.services import Embedding, ModelCard
from server.llama.embedding_worker import EmbeddingWorker
from tests.clients.written import writing
from tests.http_lead import Lead
from tests.toy_embedder import FakeEmbedder

TALK: list[BaseMessage] = [SystemMessage("be brief"), HumanMessage("hello there")]
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'


class Pet(BaseModel):
    """A pet."""

    kind: Literal["cat", "dog"]
    name: Annotated[str, Field(max_length=5)]


@tool
def weather(city: Literal["Paris", "Rome"]) -> str:
    """Return the weather of a city."""
    return f"a clear sky over {city}"


Chat: TypeAlias = Callable[..., ChatOpenAI]


@pytest.fixture
def chat(clients: dict[str, Any]) -> Chat:
    """Yield a function that makes a model for the server at a URL."""

    def chat(url: str, **how: Any) -> ChatOpenAI:
        asked: Any = {"temperature": 0, "max_retries": 0, **clients, **how}
        return ChatOpenAI(base_url=f"{url}/v1", api_key=cast(Any, "none"), model="toy", **asked)

    return chat


@pytest.fixture
def model(lead: Lead, chat: Chat) -> Iterator[ChatOpenAI]:
    yield chat(lead.url, stream_usage=True, stop=["q", "z"])
    lead.until_idle()


def together(chunks: list[Any]) -> AIMessageChunk:
    whole = chunks[0]
    for chunk in chunks[1:]:
        whole += chunk
    return whole


def test_invoke(model: ChatOpenAI):
    reply = model.invoke(TALK)
    assert reply.text
    assert reply.response_metadata["finish_reason"] == "stop"
    assert reply.response_metadata["model_name"] == "toy"
    usage = reply.usage_metadata
    assert usage
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
    again = model.invoke(TALK).usage_metadata
    assert again
    assert again.get("input_token_details", {}).get("cache_read", 0) >= usage["input_tokens"] - 1


def test_a_stream_says_the_same(model: ChatOpenAI):
    whole = model.invoke(TALK)
    streamed = together(list(model.stream(TALK)))
    assert streamed.text == whole.text
    assert streamed.usage_metadata
    assert whole.usage_metadata
    assert streamed.usage_metadata["output_tokens"] == whole.usage_metadata["output_tokens"]
    assert streamed.response_metadata["finish_reason"] == "stop"


async def test_an_asynchronous_one_does_too(model: ChatOpenAI):
    whole = await model.ainvoke(TALK)
    assert together([chunk async for chunk in model.astream(TALK)]).text == whole.text
    replies = await model.abatch([TALK, TALK])
    assert [one.text for one in replies] == [whole.text] * 2


def test_logprobs_and_several_choices(lead: Lead, chat: Chat):
    model = chat(lead.url, n=2, logprobs=True, top_logprobs=2, temperature=1, seed=4, max_tokens=6)
    (replies,) = model.generate([TALK]).generations
    assert len({one.text for one in replies}) == 2
    told = [one.message.response_metadata["logprobs"]["content"] for one in cast(list[Any], replies)]
    assert [len(entry["top_logprobs"]) for entry in told[0]] == [2] * len(told[0])


@pytest.mark.parametrize("responses", [False, True])
def test_tools_are_called_and_their_results_told(responses: bool, chat: Chat):
    with writing(f"Let me see.\n{CALL}", "Clear.") as lead:
        model = chat(lead.url, use_responses_api=responses).bind_tools([weather])
        first = model.invoke(TALK)
        (call,) = first.tool_calls
        assert (call["name"], call["args"]) == ("weather", {"city": "Rome"})
        result = weather.invoke(call)
        assert isinstance(result, ToolMessage)
        last = model.invoke([*TALK, first, result])
        assert last.text == "Clear."
        assert not last.tool_calls
        assert f"Let me see.\n{CALL}" in lead.prompts[1]
        assert "<tool_response>\na clear sky over Rome\n</tool_response>" in lead.prompts[1]


@pytest.mark.parametrize("responses", [False, True])
def test_calls_are_streamed(responses: bool, chat: Chat):
    twice = f"{CALL}\n{CALL.replace('Rome', 'Paris')}"
    with writing(twice) as lead:
        model = chat(lead.url, use_responses_api=responses).bind_tools([weather])
        reply = together(list(model.stream(TALK)))
    assert [call["args"] for call in reply.tool_calls] == [{"city": "Rome"}, {"city": "Paris"}]
    assert not reply.invalid_tool_calls


def test_a_tool_that_must_be_called(lead: Lead, chat: Chat):
    for choice in ("any", "weather", True):
        model = chat(lead.url).bind_tools(
            [weather], tool_choice=choice, strict=True, parallel_tool_calls=False
        )
        reply = model.invoke(TALK)
        assert [call["name"] for call in reply.tool_calls] == ["weather"]


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings:UserWarning")  # of what the SDK has parsed
@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_structured_output(lead: Lead, method: Any, chat: Chat):
    how: Any = {"method": method, "strict": True}
    model: Any = chat(lead.url)  # whose types of this are not strict
    reply = model.with_structured_output(Pet, **how, include_raw=True).invoke(TALK)
    assert isinstance(reply["parsed"], Pet)
    assert reply["parsing_error"] is None
    assert list(model.with_structured_output(Pet, **how).stream(TALK))[-1] == reply["parsed"]


def test_the_responses_api(lead: Lead, chat: Chat):
    model = chat(lead.url, use_responses_api=True, max_tokens=200)
    whole = model.invoke(TALK)
    assert whole.text
    assert whole.response_metadata["id"].startswith("resp_")
    streamed = together(list(model.stream(TALK)))
    assert streamed.text == whole.text
    assert streamed.usage_metadata
    follow = chat(lead.url, use_responses_api=True, use_previous_response_id=True, max_tokens=8)
    more = follow.invoke([*TALK, whole, HumanMessage("go on")])
    assert more.usage_metadata
    assert more.usage_metadata["input_tokens"] > len("go on") + len(whole.text)


def test_refusals_are_the_sdks(lead: Lead, chat: Chat):
    with pytest.raises(openai.BadRequestError, match="maximum context length"):
        chat(lead.url).invoke("x" * 5000)


def test_embeddings(clients: dict[str, Any]):
    with closing(EmbeddingWorker(FakeEmbedder())) as worker:
        embedding = Embedding(worker, ModelCard("toy-embedder", 1, 64, 1000, "a toy"))
        with writing(embedding=embedding) as lead:
            model = OpenAIEmbeddings(
                model="toy-embedder",
                base_url=f"{lead.url}/v1",
                api_key=cast(Any, "none"),
                **clients,
                check_embedding_ctx_length=False,  # it would tokenize with OpenAI's vocabularies
            )
            one, two = model.embed_documents(["one", "two"])
            assert np.linalg.norm(one) == pytest.approx(1)
            assert model.embed_query("two") == pytest.approx(two)
