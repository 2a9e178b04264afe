"""Real models as clients meet them: formats, tools, logprobs, streamed pieces and the end of the context."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from server.engine.request import GenerationRequest
from server.llama.llamacpp import LlamaBackend
from server.llama.options import LlamaOptions
from server.sampling.params import SamplingParams
from tests.http_lead import Lead, serving
from tests.model.duet import Duet

N_CTX = 8192  # of SmolLM2
CAPITAL: list[Any] = [{"role": "user", "content": "What is the capital of France?"}]
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Current weather in a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 20}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
CITY = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 20},
        "inhabitants": {"type": "integer", "minimum": 0, "maximum": 99_000_000},
    },
    "required": ["city", "inhabitants"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def lead(smollm2: LlamaBackend) -> Iterator[Lead]:
    with serving(smollm2, template=smollm2.chat_template) as one:  # pyright: ignore[reportArgumentType]
        yield one


@pytest.fixture
def client(lead: Lead) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{lead.url}/v1", api_key="none", timeout=100) as one:
        yield one


def chat(client: openai.OpenAI, **more: Any) -> Any:
    asked: dict[str, Any] = {"model": "toy", "messages": CAPITAL, "temperature": 0, "max_tokens": 60, **more}
    complete: Any = client.chat.completions.create
    return complete(**asked).choices[0]


def test_a_reply_keeps_to_a_schema(client: openai.OpenAI):
    schema = {"type": "json_schema", "json_schema": {"name": "city", "schema": CITY, "strict": True}}
    choice = chat(client, response_format=schema)
    assert choice.finish_reason == "stop"
    found = json.loads(choice.message.content)
    assert list(found) == ["city", "inhabitants"]
    assert type(found["inhabitants"]) is int


@pytest.mark.parametrize("stream", [False, True])
def test_templateless_tools_are_called(client: openai.OpenAI, stream: bool):
    once: dict[str, Any] = {"tools": [WEATHER], "tool_choice": "required", "parallel_tool_calls": False}
    if stream:
        with client.chat.completions.stream(model="toy", messages=CAPITAL, temperature=0, **once) as events:
            choice = events.get_final_completion().choices[0]
    else:
        choice = chat(client, **once)
    assert choice.finish_reason == "tool_calls"
    assert choice.message.tool_calls
    [call] = choice.message.tool_calls
    assert call.function.name == "get_weather"  # pyright: ignore[reportAttributeAccessIssue]
    assert list(json.loads(call.function.arguments)) == ["city"]  # pyright: ignore[reportAttributeAccessIssue]


def test_logprobs_are_those_of_the_model(client: openai.OpenAI):
    choice = chat(client, logprobs=True, top_logprobs=5)
    entries = choice.logprobs.content
    assert "".join(one.token for one in entries) == choice.message.content
    for one in entries:
        assert one.top_logprobs[0].token == one.token
        told = [other.logprob for other in one.top_logprobs]
        assert told == sorted(told, reverse=True)
        assert -20 < told[0] <= 0


def test_ignore_eos_bans_every_end(lead: Lead, smollm2: LlamaBackend):
    """As in llama-server, every token that ends a text is banned, not only the one that ends a turn."""
    body = {"prompt": "The end.<|im_end|>", "n_predict": 60, "ignore_eos": True, "temperature": 0}
    told = httpx.post(f"{lead.url}/completion", json={**body, "return_tokens": True}, timeout=100).json()
    ends = {"<|endoftext|>", "<|im_end|>", "<reponame>"}
    assert {smollm2.vocab.piece(token, special=True).decode() for token in smollm2.vocab.eog} == ends
    assert told["tokens_predicted"] == 60
    assert not smollm2.vocab.eog & set(told["tokens"])


def test_streamed_pieces_make_the_whole_text(gemma: LlamaBackend):
    """SentencePiece writes spaces into its pieces, and characters that it lacks byte by byte."""
    with serving(gemma) as lead:  # pyright: ignore[reportArgumentType]
        body = {"prompt": "Grüße aus Köln: 🦊 日本語 ", "max_tokens": 120, "temperature": 0}
        whole = httpx.post(f"{lead.url}/v1/completions", json=body, timeout=100).json()["choices"][0]["text"]
        parts: list[str] = []
        with httpx.stream(
            "POST", f"{lead.url}/v1/completions", json={**body, "stream": True}, timeout=100
        ) as told:
            for line in told.iter_lines():
                if line.startswith("data: {"):
                    parts += [choice["text"] for choice in json.loads(line[6:])["choices"]]
        assert "".join(parts) == whole
        assert len(parts) > 10, "it was not streamed"
        assert "\ufffd" not in whole


@pytest.mark.timeout(900)  # 8,184 tokens are evaluated
def test_the_context_ends_or_goes_on(smollm2_file: Path):
    """At 8192 tokens a reply ends, or half of what is evaluated is dropped and it goes on."""
    options = LlamaOptions(smollm2_file, n_cells=N_CTX, n_seqs=1, n_threads=2, flash_attention="on")
    with closing(LlamaBackend(options)) as backend:
        assert backend.n_ctx == N_CTX
        line = backend.vocab.tokenize("The sea brought a letter and three bottles. ", special=False)
        prompt = (line * N_CTX)[: N_CTX - 8]
        duet = Duet(backend, n_slots=1)
        [ended] = duet.run(GenerationRequest(prompt, SamplingParams(0.0)))
        assert ended.finished.reason == "length"
        assert len(ended.tokens) == 8
        [shifted] = duet.run(GenerationRequest(prompt, SamplingParams(0.0), 20, n_keep=4))
        assert shifted.started.n_cached == len(prompt) - 1
        assert shifted.tokens[:8] == ended.tokens
        assert len(shifted.tokens) == 20
        stats = shifted.finished.stats
        assert stats.n_dropped == (N_CTX - 1 - 4) // 2
