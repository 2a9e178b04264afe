"""Legacy completions: prompts of every kind, echo, logprobs, infilling, streams."""

from __future__ import annotations

import asyncio
import json
from itertools import chain
from typing import Any

import httpx
import openai
import pytest

from server.engine.events import Committed, Failed, Finished, Started, Stats
from server.errors import BackendError
from server.llama.backend import FillInMiddle
from server.sampling.logprobs import TokenLogprobs
from tests.contract.contract import validate
from tests.fake_backend import FakeVocabulary
from tests.http_lead import Lead
from tests.server.api.scripted import Call, Script, Scripts, services

PROMPT = "once upon a time"
IDS = list(PROMPT.encode())
STARTED = Started(5, 2)


def post(lead: Lead, path: str = "/v1/completions", **body: Any) -> httpx.Response:
    return httpx.post(lead.url + path, json={"prompt": PROMPT, **body}, timeout=20)


def told(lead: Lead, **body: Any) -> dict[str, Any]:
    response = post(lead, **body)
    assert response.status_code == 200, response.text
    validate("Completion", response.json())
    return response.json()


def text(lead: Lead, **body: Any) -> str:
    [choice] = told(lead, **body)["choices"]
    return choice["text"]


def chunks_of(text: str) -> list[dict[str, Any]]:
    events = text.split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    chunks = [json.loads(event.removeprefix("data: ")) for event in events[:-2]]
    for chunk in chunks:
        validate("CompletionChunk", chunk)
    return chunks


def test_a_completion_has_openais_shape(lead: Lead):
    body = told(lead, max_tokens=20)
    assert body["choices"][0]["finish_reason"] == "length"
    assert body["usage"]["prompt_tokens"] == len(IDS)
    assert body["usage"]["completion_tokens"] == body["timings"]["predicted_n"] == 20
    assert len(body["choices"][0]["text"]) == 20


@pytest.mark.parametrize("body", [{}, {"max_tokens": -1}, {"n_predict": -1}, {"max_tokens": None}], ids=str)
def test_reply_runs_until_turn_ends(lead: Lead, body: dict[str, Any]):
    [choice] = told(lead, **body)["choices"]
    assert (choice["finish_reason"], len(choice["text"]) > 100) == ("stop", True)


@pytest.mark.parametrize("body", [{"n_predict": 16}, {"max_tokens": 16}], ids=str)
def test_no_longer_than_it_says(lead: Lead, body: dict[str, Any]):
    assert told(lead, **body)["usage"]["completion_tokens"] == 16


def test_n_predict_of_minus_one_goes_on(lead: Lead):
    assert told(lead, n_predict=-1)["usage"]["completion_tokens"] > 16


@pytest.mark.parametrize(
    "prompt",
    [
        [PROMPT],
        IDS,
        [IDS],
        ["once upon", *b" a", " time"],
        [*b"once", " upon a time"],
        [["once upon", *b" a time"]],
    ],
    ids=str,
)
def test_prompt_has_several_forms(lead: Lead, prompt: Any):
    assert text(lead, prompt=prompt) == text(lead)


@pytest.mark.parametrize("stream", [False, True])
def test_several_prompts_are_answered_in_their_order(lead: Lead, stream: bool):
    prompts = ["one", list(b"two"), ["th", *b"ree"], "four"]
    options: dict[str, Any] = {"n": 2, "seed": 7, "temperature": 1.0, "echo": True}
    alone = [told(lead, prompt=[prompt], **options) for prompt in prompts]
    expected = [choice["text"] for body in alone for choice in body["choices"]]
    assert [text[:3] for text in expected[::2]] == ["one", "two", "thr", "fou"]
    assert len(set(expected)) == 8
    response = post(lead, prompt=prompts, stream=stream, stream_options={"include_usage": True}, **options)
    if stream:
        texts = [""] * 8
        chunks = chunks_of(response.text)
        for choice in (choice for chunk in chunks for choice in chunk["choices"]):
            texts[choice["index"]] += choice["text"]
        assert texts == expected
        usage = chunks[-1]["usage"]
    else:
        choices = response.json()["choices"]
        assert [choice["index"] for choice in choices] == list(range(8))
        assert [choice["text"] for choice in choices] == expected
        usage = response.json()["usage"]
    for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert usage[name] == sum(body["usage"][name] for body in alone)
    lead.until_idle()


def test_the_best_of_each_prompt(lead: Lead):
    options = {"prompt": ["one", "two"], "seed": 3, "temperature": 1.0, "logprobs": 0}

    def mean(choice: dict[str, Any]) -> float:
        logprobs = choice["logprobs"]["token_logprobs"]
        return sum(logprobs) / len(logprobs)

    three = told(lead, n=3, **options)["choices"]
    best = told(lead, best_of=3, **options)["choices"]
    assert [choice["text"] for choice in best] == [max(three[i : i + 3], key=mean)["text"] for i in (0, 3)]


def test_stream_equals_whole_completion(lead: Lead):
    options: dict[str, Any] = {"max_tokens": 30, "logprobs": 2, "return_tokens": True}
    [whole] = told(lead, **options)["choices"]
    chunks = chunks_of(post(lead, **options, stream=True).text)
    parts = [chunk["choices"][0] for chunk in chunks]
    assert "".join(part["text"] for part in parts) == whole["text"]
    for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
        joined = chain.from_iterable(part["logprobs"][name] for part in parts if part["logprobs"])
        assert list(joined) == whole["logprobs"][name]
    assert [token for part in parts for token in part.get("tokens", [])] == whole["tokens"]
    assert [part["finish_reason"] for part in parts] == [None] * (len(parts) - 1) + ["length"]
    assert parts[-1]["text"] == ""
    assert "metrics" in chunks[-1]
    assert all("usage" not in chunk for chunk in chunks)


def test_stop_seed_and_bias_apply(lead: Lead):
    whole = text(lead, max_tokens=40)
    stop = whole[20:23]
    assert text(lead, max_tokens=40, stop=[stop]) == whole[: whole.find(stop)]
    hot = {"temperature": 1.0, "max_tokens": 30}
    assert text(lead, seed=5, **hot) == text(lead, seed=5, **hot) != text(lead, seed=6, **hot)
    assert set(text(lead, logit_bias={"113": 100})) == {"q"}
    assert text(lead, speculative=False, prediction={"type": "content", "content": whole}) == text(lead)


@pytest.mark.parametrize(
    "asked",
    [
        {"json_schema": {"enum": [12, 345]}},
        {"response_format": {"type": "json_schema", "json_schema": {"schema": {"enum": [12, 345]}}}},
        {"grammar": 'root ::= "12" | "345"'},
    ],
    ids=str,
)
def test_a_text_in_a_form(lead: Lead, asked: dict[str, Any]):
    assert text(lead, **asked) in ("12", "345")


def test_a_prompt_that_goes_on_is_cached(lead: Lead):
    begun = "a prompt of which nobody has heard "
    first = told(lead, prompt=begun, max_tokens=20)
    lead.until_idle()
    second = told(lead, prompt=begun + first["choices"][0]["text"] + " and")
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] >= first["usage"]["total_tokens"] - 1


def test_the_sdk_drives_it(client: openai.OpenAI):
    whole = client.completions.create(model="toy", prompt=PROMPT, max_tokens=12, logprobs=2, user="me")
    [choice] = whole.choices
    assert choice.logprobs is not None
    assert "".join(choice.logprobs.tokens or []) == choice.text
    assert choice.logprobs.text_offset == list(range(12))
    for token, logprob, top in zip(
        choice.logprobs.tokens or [],
        choice.logprobs.token_logprobs or [],
        choice.logprobs.top_logprobs or [],
        strict=True,
    ):
        assert top[token] == logprob == max(top.values())
        assert len(top) == 2
    stream = client.completions.create(
        model="toy", prompt=PROMPT, max_tokens=12, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    assert "".join(one.text for chunk in chunks for one in chunk.choices) == choice.text
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 12
    with pytest.raises(openai.NotFoundError):
        client.completions.create(model="gpt-9", prompt=PROMPT)
    with pytest.raises(openai.BadRequestError, match="maximum context length is 1024") as caught:
        client.completions.create(model="toy", prompt="x" * 5000)
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "prompt")


UNHONOURABLE: list[tuple[dict[str, Any], str]] = [
    ({"prompt": 1}, "prompt"),
    ({"prompt": []}, "prompt"),
    ({"prompt": ""}, "prompt"),  # the toy has no BOS
    ({"prompt": [True]}, "prompt"),
    ({"prompt": [1.5]}, "prompt"),
    ({"prompt": [[]]}, "prompt"),
    ({"prompt": [[1], 2]}, "prompt"),
    ({"prompt": [["a", ["b"]]]}, "prompt"),
    ({"prompt": [259]}, "prompt"),
    ({"prompt": [-1]}, "prompt"),
    ({"prompt": ["a"] * 33}, "prompt"),
    ({"prompt": ["a"] * 32, "n": 3}, "prompt"),
    ({"suffix": "the end"}, "suffix"),
    ({"logprobs": 6}, "logprobs"),
    ({"logprobs": True}, "logprobs"),
    ({"echo": True, "logprobs": 0, "stream": True}, "echo"),
    ({"echo": "yes"}, "echo"),
    ({"max_tokens": -2}, "max_tokens"),
    ({"n_predict": -2}, "n_predict"),
    ({"n_predict": -2}, "n_predict"),
    ({"n_predict": 3, "max_tokens": 4}, "n_predict"),
    ({"min_tokens": 17, "max_tokens": 16}, "min_tokens"),
    ({"n": 2, "best_of": 1}, "best_of"),
    ({"best_of": 2, "stream": True}, "best_of"),
    ({"n_beams": 2, "n": 2}, "n_beams"),
    ({"temperature": -1}, "temperature"),
    ({"cache_prompt": "no"}, "cache_prompt"),
    ({"min_keep": 2}, "min_keep"),
    ({"speculative": {"n_max": 1, "n_min": 2}}, "speculative.n_min"),
]


@pytest.mark.parametrize(("body", "param"), UNHONOURABLE, ids=str)
def test_unsupported_field_is_named_400(lead: Lead, body: dict[str, Any], param: str):
    response = post(lead, **body)
    assert response.status_code == 400
    validate("Error", response.json())
    assert response.json()["error"]["param"] == param
    lead.until_idle()


def tokens_of(script: Script) -> list[int]:
    return list(script.requests[0].prompt)


async def answer(*scripts: Script, vocabulary: FakeVocabulary | None = None, **body: Any) -> Call:
    state = services(Scripts(*scripts), vocabulary=vocabulary)
    one = Call(state, path="/v1/completions", body=body)
    await asyncio.wait_for(one.run(), 10)
    return one


def step(data: bytes, *, with_logprobs: bool = False) -> Committed:
    logprobs = tuple(TokenLogprobs(token, -0.5, ((token, -0.5),)) for token in data) if with_logprobs else ()
    return Committed(tuple(data), (None,) * len(data), logprobs=logprobs)


def ended(n: int) -> Finished:
    return Finished("stop", Stats(5, 2, n, n, 1.0, 2.0))


class WithBos(FakeVocabulary):
    bos = 256
    add_bos = True


class Infilling(WithBos):
    fim = FillInMiddle(11, 12, 13)


@pytest.mark.parametrize(
    ("prompt", "tokens"),
    [
        ("", [256]),
        ("ab", [256, 97, 98]),
        (["ab"], [256, 97, 98]),
        (["<|im_start|>ab"], [256, 97, 98]),
        (["a", 98], [256, 97, 98]),
        ([97, "b"], [97, 98]),
        ([97, 98], [97, 98]),
        ([[97], ["b", 257]], [97]),
    ],
    ids=str,
)
async def test_text_prompt_begins_with_bos(prompt: Any, tokens: list[int]):
    scripts = [Script(STARTED, step(b"x"), ended(1)) for _ in range(2)]
    await answer(*scripts, vocabulary=WithBos(), prompt=prompt)
    assert tokens_of(scripts[0]) == tokens


async def test_empty_prompt_begins_a_document():
    script = Script(STARTED, step(b"x"), ended(1))
    one = await answer(script, vocabulary=WithBos())
    assert one.status == 200
    assert tokens_of(script) == [256]


@pytest.mark.parametrize("prompt", ["a<|im_end|>", ["a<|im_end|>"], [97, "<|im_end|>"]], ids=str)
async def test_suffix_uses_infill_tokens(prompt: Any):
    script = Script(STARTED, step(b"x"), ended(1))
    one = await answer(script, vocabulary=Infilling(), prompt=prompt, suffix="z<|im_start|>", echo=True)
    assert tokens_of(script) == [256, 11, *b"a<|im_end|>", 12, *b"z<|im_start|>", 13]
    assert one.json["choices"][0]["text"] == "a<|im_end|>x"


async def test_an_empty_suffix_is_none():
    script = Script(STARTED, step(b"x"), ended(1))
    await answer(script, vocabulary=Infilling(), prompt="a", suffix="")
    assert tokens_of(script) == [256, 97]


async def test_partial_characters_have_logprobs():
    data = "aé😀b".encode()
    whole = await answer(Script(STARTED, step(data, with_logprobs=True), ended(8)), prompt="p", logprobs=1)
    validate("Completion", whole.json)
    logprobs = whole.json["choices"][0]["logprobs"]
    assert logprobs["tokens"] == [
        "a",
        "bytes:\\xc3",
        "bytes:\\xa9",
        "bytes:\\xf0",
        "bytes:\\x9f",
        "bytes:\\x98",
        "bytes:\\x80",
        "b",
    ]
    assert logprobs["text_offset"] == [0, 1, 1, 2, 2, 2, 2, 3]
    script = Script(STARTED, *[step(data[i : i + 3], with_logprobs=True) for i in (0, 3, 6)], ended(8))
    streamed = await answer(script, prompt="p", logprobs=1, stream=True)
    offsets: list[int] = []
    for event in streamed.events[:-1]:
        validate("CompletionChunk", event)
        offsets += (event["choices"][0]["logprobs"] or {"text_offset": []})["text_offset"]
    assert offsets == logprobs["text_offset"]


async def test_late_failure_is_last_event():
    script = Script(STARTED, step(b"ab"), Failed(BackendError("no more")))
    events = (await answer(script, prompt="p", stream=True)).events
    assert "".join(event["choices"][0]["text"] for event in events[:-1]) == "ab"
    validate("Error", events[-1])


async def test_leaving_client_ends_all_prompts():
    scripts = [Script(STARTED, step(b"a")) for _ in range(2)]
    body = {"prompt": ["one", "two"], "stream": True}
    one = Call(services(Scripts(*scripts)), path="/v1/completions", body=body)
    running = asyncio.ensure_future(one.run())
    await one.until_sent(b'"text":"a"')
    one.gone.set()
    await asyncio.wait_for(running, 10)
    assert all(script.cancels for script in scripts)
