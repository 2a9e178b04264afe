"""Completions that echo their prompt: where its tokens are in the text, and prompts without a reply."""

from __future__ import annotations

from typing import Any

import pytest

from server.engine.events import Committed, Progress, Started
from server.sampling.logprobs import TokenLogprobs
from tests.contract.contract import validate
from tests.fake_backend import FakeVocabulary, Spacing
from tests.http_lead import Lead
from tests.server.api.scripted import Script
from tests.server.api.test_completions import IDS, PROMPT, WithBos, answer, chunks_of, ended, post, step, told


class SpacedWithBos(Spacing):
    bos = 256
    add_bos = True


@pytest.mark.parametrize("vocabulary", [FakeVocabulary(), WithBos(), Spacing(), SpacedWithBos()])
async def test_offsets_count_control_tokens(vocabulary: FakeVocabulary):
    prompt = "é<|im_start|>user\nhi"
    tokens = [256] * vocabulary.add_bos + vocabulary.tokenize(prompt, special=True)
    of_prompt = Progress(len(tokens), logprobs=tuple(TokenLogprobs(token, -0.5) for token in tokens[1:]))
    script = Script(Started(len(tokens), 0), of_prompt, step(b"ok", with_logprobs=True), ended(2))
    one = await answer(script, vocabulary=vocabulary, prompt=prompt, echo=True, logprobs=1)
    validate("Completion", one.json)
    assert script.requests[0].prompt == tokens
    [choice] = one.json["choices"]
    assert choice["text"] == f"{prompt}ok"
    logprobs = choice["logprobs"]
    before = len(tokens) + 2 - 12
    assert logprobs["text_offset"] == [*[0] * (before + 2), 1, *range(13, 22)]
    assert logprobs["tokens"][before + 2 :] == ["<|im_start|>", *"user\nhiok"]


def test_a_prompt_is_scored_without_a_reply(lead: Lead):
    body = told(lead, max_tokens=0, echo=True, logprobs=1)
    [choice] = body["choices"]
    assert (choice["text"], choice["finish_reason"]) == (PROMPT, "length")
    [longer] = told(lead, max_tokens=3, echo=True, logprobs=1)["choices"]
    assert choice["logprobs"] == {name: values[: len(IDS)] for name, values in longer["logprobs"].items()}
    assert body["usage"]["completion_tokens"] == body["timings"]["predicted_n"] == 0
    assert body["usage"]["prompt_tokens"] == body["usage"]["total_tokens"] == len(IDS)
    lead.until_idle()


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"logprobs": 2, "return_tokens": True, "return_sources": True},
        {"n": 2},
        {"best_of": 2},
        {"n_beams": 2},
        {"prompt": ["a", "b"], "timings_per_token": True},
        {"stop": "a"},
    ],
    ids=str,
)
def test_without_an_echo_no_text_is_told(lead: Lead, more: dict[str, Any]):
    body = told(lead, max_tokens=0, **more)
    assert {(choice["text"], choice["finish_reason"]) for choice in body["choices"]} == {("", "length")}
    assert body["usage"]["completion_tokens"] == 0
    lead.until_idle()


def test_empty_stream_echoes_the_prompt(lead: Lead):
    options = {"include_usage": True}
    *chunks, last = chunks_of(post(lead, max_tokens=0, echo=True, stream=True, stream_options=options).text)
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == PROMPT
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"
    assert last["usage"]["completion_tokens"] == 0
    lead.until_idle()


async def test_hidden_stop_token_is_no_end():
    stop = Committed((257,), (None,))
    one = await answer(Script(Started(1, 0), stop, ended(1)), prompt="a", max_tokens=0)
    assert one.json["choices"][0]["finish_reason"] == "length"


def test_scored_prompt_is_cached_afterwards(lead: Lead):
    told(lead, max_tokens=0)
    assert told(lead, max_tokens=2)["usage"]["prompt_tokens_details"]["cached_tokens"] == len(IDS) - 1


def test_other_completion_forms_echo_too(lead: Lead):
    native = post(lead, "/completion", max_tokens=0).json()
    assert (native["content"], native["tokens_predicted"], native["stop_type"]) == ("", 0, "limit")
    streamed = post(lead, "/completion", max_tokens=0, stream=True)
    assert streamed.status_code == 200
    assert (
        post(
            lead, "/v1/chat/completions", messages=[{"role": "user", "content": "a"}], max_tokens=0
        ).status_code
        == 400
    )
