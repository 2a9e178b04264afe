"""A question that must be answered by a call, and then the tool's result, as other clients send them.

Raises AssertionError, or an error of the client's.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, Literal, cast

import openai
from langchain_core.messages import AIMessageChunk, BaseMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_core.utils.function_calling import convert_to_openai_tool
from langchain_openai import ChatOpenAI
from openai.types.chat import ChatCompletion

from server.llama.llamacpp import LlamaBackend
from tests.http_lead import Lead, serving

QUESTION = "What is the weather in Paris?"
RESULT = "sunny, 21 degrees"
_ONE_CALL: Any = {"tool_choice": "required", "parallel_tool_calls": False, "max_tokens": 400}
_THOUGHTS: Any = {"extra_body": {"reasoning_budget": 1}}
_FEW = 1  # tokens of the answer, whose words do not matter


@tool
def get_weather(city: Literal["Paris", "Rome"]) -> str:
    """Return the weather in a city."""
    assert city in ("Paris", "Rome")
    return RESULT


@contextmanager
def speaking(backend: LlamaBackend, template: str) -> Generator[Lead]:
    """Yield a lead over the backend with this template; afterwards the backend is empty again."""
    with serving(cast(Any, backend), template=template) as lead:
        yield lead
        lead.until_idle()
    for seq in range(backend.n_seqs):
        backend.trim(seq, 0)


def by_the_sdk(lead: Lead) -> int:
    """Return how many tokens of the history the second turn evaluates."""
    url = lead.url
    asked: Any = {
        "model": "toy",
        "temperature": 0,
        "tools": [convert_to_openai_tool(get_weather, strict=True)],
    }
    history: list[Any] = [{"role": "user", "content": QUESTION}]
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=100) as client:
        create = cast(Callable[..., ChatCompletion], client.chat.completions.create)
        choice = create(messages=history, **_ONE_CALL, **_THOUGHTS, **asked).choices[0]
        assert choice.finish_reason == "tool_calls", choice
        assert choice.message.tool_calls
        assert not choice.message.content, choice
        history.append(choice.message.model_dump(exclude_none=True))
        lead.until_idle()  # where thoughts are dropped, the rest is evaluated anew meanwhile
        calls: list[Any] = choice.message.tool_calls
        for call in calls:
            assert call.type == "function"
            result = get_weather.invoke(json.loads(call.function.arguments))
            history.append({"role": "tool", "tool_call_id": call.id, "content": result})
        there = client.with_options(base_url=url)
        shown = there.post("/apply-template", cast_to=object, body={"messages": history})
        assert RESULT in str(shown), shown
        answer = create(messages=history, max_tokens=_FEW, **asked)
        assert answer.usage
        assert answer.usage.prompt_tokens_details
        n_new = answer.usage.prompt_tokens - (answer.usage.prompt_tokens_details.cached_tokens or 0)
        message = f"<|im_start|>tool\n{RESULT}<|im_end|>\n<|im_start|>assistant\n"
        return n_new - _n_tokens(there, message)


def _n_tokens(client: openai.OpenAI, text: str) -> int:
    told = client.post("/tokenize", cast_to=object, body={"content": text})
    return len(cast(dict[str, list[int]], told)["tokens"])


def by_langchain(url: str, clients: dict[str, Any]) -> None:
    """Run two turns by LangChain.

    clients: its HTTP clients, which the caller closes.
    """
    asked: Any = {"temperature": 0, "max_retries": 0, **clients}
    model = ChatOpenAI(base_url=f"{url}/v1", api_key=cast(Any, "none"), model="toy", **asked)
    calling = model.bind_tools([get_weather], strict=True, **_ONE_CALL, **_THOUGHTS)
    history: list[BaseMessage] = [HumanMessage(QUESTION)]
    chunks = [cast(AIMessageChunk, chunk) for chunk in calling.stream(history)]
    whole = chunks[0]
    for chunk in chunks[1:]:
        whole += chunk
    assert whole.tool_calls, whole
    assert not whole.invalid_tool_calls
    history.append(whole)
    for call in whole.tool_calls:
        result = get_weather.invoke(call)
        assert isinstance(result, ToolMessage)
        history.append(result)
    assert model.bind_tools([get_weather], strict=True, max_tokens=_FEW).invoke(history).usage_metadata
