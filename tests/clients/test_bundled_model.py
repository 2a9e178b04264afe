"""The same clients and a model that means what it says: tools are called, and what they return is used."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from typing import Any, Literal, cast

import openai
import pytest
from langchain_core.messages import BaseMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, Field

from server.llama.llamacpp import LlamaBackend, LlamaOptions
from server.settings import BUNDLED_MODEL
from tests.http_lead import Lead, serving

pytestmark = pytest.mark.model

QUESTION = "What is the weather in Paris?"
SUNNY = json.dumps({"city": "Paris", "temperature": 21, "condition": "sunny"})


@tool
def get_weather(city: str) -> str:
    """Return the current weather in a city."""
    assert city == "Paris"
    return SUNNY


class GetWeather(BaseModel):
    """Return the current weather in a city."""

    city: str = Field(description="The city")


class Person(BaseModel):
    name: Literal["Anna", "Bert"]
    age: int


@pytest.fixture(scope="module")
def speaking() -> Iterator[Lead]:
    with closing(LlamaBackend(LlamaOptions(BUNDLED_MODEL, n_cells=4096, n_seqs=16))) as backend:
        with serving(backend, template=backend.chat_template) as lead:  # pyright: ignore[reportArgumentType]
            yield lead


@pytest.fixture
def sdk(speaking: Lead) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{speaking.url}/v1", api_key="none", max_retries=0, timeout=100) as client:
        yield client
        speaking.until_idle()


def test_langchain(speaking: Lead, clients: dict[str, Any]):
    asked: Any = {"temperature": 0, "max_retries": 0, **clients}
    model = ChatOpenAI(
        base_url=f"{speaking.url}/v1", api_key=cast(Any, "none"), model="toy", **asked
    ).bind_tools([get_weather])
    history: list[BaseMessage] = [HumanMessage(QUESTION)]
    history.append(model.invoke(history))
    (call,) = cast(Any, history[-1]).tool_calls
    result = get_weather.invoke(call)
    assert isinstance(result, ToolMessage)
    chunks = list(model.stream([*history, result]))
    assert "sunny" in "".join(chunk.text for chunk in chunks)


def test_responses_of_the_sdk(sdk: openai.OpenAI):
    definition: Any = openai.pydantic_function_tool(GetWeather, name="get_weather")["function"]
    tools: Any = [{"type": "function", **definition}]
    with sdk.responses.stream(model="toy", input=QUESTION, tools=tools, temperature=0) as stream:
        pieces = [e.delta for e in stream if e.type == "response.function_call_arguments.delta"]
        first = stream.get_final_response()
    (call,) = [item for item in first.output if item.type == "function_call"]
    assert json.loads("".join(pieces)) == json.loads(call.arguments) == {"city": "Paris"}
    assert len(pieces) > 1
    output: Any = {"type": "function_call_output", "call_id": call.call_id, "output": SUNNY}
    asked: Any = {"previous_response_id": first.id, "tools": tools, "temperature": 0}
    answer = sdk.responses.create(model="toy", input=[output], **asked, stream=False)
    assert "sunny" in answer.output_text
    assert answer.usage
    assert answer.usage.input_tokens_details.cached_tokens > 0


def test_a_parsed_reply(sdk: openai.OpenAI):
    asked: Any = [{"role": "user", "content": "Anna is 9 years old. Say it as JSON with name and age."}]
    reply = sdk.chat.completions.parse(model="toy", messages=asked, response_format=Person, temperature=0)
    person = reply.choices[0].message.parsed
    assert person
    assert person.name == "Anna"
