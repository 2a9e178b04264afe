"""Chat completions through the official SDK, curl-like requests and raw sockets."""

from __future__ import annotations

import json
import socket
from typing import Any
from urllib.parse import urlsplit

import httpx
import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam

from tests.contract.contract import validate
from tests.http_lead import Lead

HELLO: list[ChatCompletionMessageParam] = [{"role": "user", "content": "hello there"}]
BODY: dict[str, Any] = {"messages": HELLO, "max_tokens": 20}


def post(lead: Lead, body: Any, **kwargs: Any) -> httpx.Response:
    return httpx.post(f"{lead.url}/v1/chat/completions", json=body, timeout=20, **kwargs)


def chunks_of(response: httpx.Response) -> list[dict[str, Any]]:
    """Return the chunks of a stream, each checked against the contract, framing included."""
    events = response.text.split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    chunks = [json.loads(event.removeprefix("data: ")) for event in events[:-2]]
    for chunk in chunks:
        validate("ChatCompletionChunk", chunk)
    return chunks


def test_a_completion_has_openais_shape(lead: Lead):
    response = post(lead, BODY)
    assert response.status_code == 200
    body = response.json()
    validate("ChatCompletion", body)
    assert body["choices"][0]["finish_reason"] == "length"
    assert body["usage"]["completion_tokens"] == 20
    assert body["timings"]["predicted_n"] == 20
    assert response.headers["x-request-id"].startswith("req_")
    assert response.headers["openai-processing-ms"].isdigit()


def test_stream_equals_whole_reply(lead: Lead):
    whole = post(lead, BODY).json()
    response = post(lead, {**BODY, "stream": True})
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers["cache-control"] == "no-cache"
    assert response.headers["x-accel-buffering"] == "no"
    chunks = chunks_of(response)
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": None}
    assert all("role" not in chunk["choices"][0]["delta"] for chunk in chunks[1:])
    assert chunks[-1]["choices"][0] == {
        "index": 0,
        "delta": {},
        "logprobs": None,
        "finish_reason": "length",
    }
    text = "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks)
    assert text == whole["choices"][0]["message"]["content"]
    assert len({(chunk["id"], chunk["created"]) for chunk in chunks}) == 1
    assert all("usage" not in chunk for chunk in chunks)


def test_usage_is_streamed_when_asked_for(lead: Lead):
    options = {"stream": True, "stream_options": {"include_usage": True}}
    chunks = chunks_of(post(lead, {**BODY, **options}))
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == 20
    assert all(chunk["usage"] is None for chunk in chunks[:-1])


def test_the_sdk_drives_it(client: openai.OpenAI):
    whole = client.chat.completions.create(model="toy", messages=HELLO, max_tokens=12, seed=1, temperature=1)
    stream = client.chat.completions.create(
        model="default",
        messages=HELLO,
        max_completion_tokens=12,
        seed=1,
        temperature=1,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    text = "".join(c.delta.content or "" for chunk in chunks for c in chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage is not None
    assert whole.usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    end = text[-4:]
    with client.chat.completions.stream(
        model="toy", messages=HELLO, seed=1, temperature=1, stop=end
    ) as helper:
        completion = helper.get_final_completion()
        assert completion.choices[0].message.content == text[: text.find(end)]


def test_first_choice_equals_single_reply(client: openai.OpenAI):
    def create(n: int) -> list[str | None]:
        completion = client.chat.completions.create(
            model="toy", messages=HELLO, max_tokens=16, seed=5, temperature=1, n=n
        )
        assert completion.usage is not None
        n_ended = sum(choice.finish_reason == "stop" for choice in completion.choices)
        texts = [choice.message.content for choice in completion.choices]
        assert completion.usage.completion_tokens == sum(len(text or "") for text in texts) + n_ended
        return texts

    (one,), three = create(1), create(3)
    assert three[0] == one
    assert len(set(three)) == 3
    assert create(3) == three
    texts = ["", "", ""]
    stream = client.chat.completions.create(
        model="toy", messages=HELLO, max_tokens=16, seed=5, temperature=1, n=3, stream=True
    )
    for choice in (choice for chunk in stream for choice in chunk.choices):
        texts[choice.index] += choice.delta.content or ""
    assert texts == three


def test_logprobs_through_the_sdk(client: openai.OpenAI):
    whole = client.chat.completions.create(
        model="toy", messages=HELLO, max_tokens=12, temperature=0, logprobs=True, top_logprobs=3
    ).choices[0]
    assert whole.logprobs is not None
    content = whole.logprobs.content or []
    assert "".join(one.token for one in content) == whole.message.content
    for one in content:
        assert one.top_logprobs[0].token == one.token
        logprobs = [alternative.logprob for alternative in one.top_logprobs]
        assert logprobs == sorted(logprobs, reverse=True)
        assert logprobs[0] == one.logprob <= 0
    stream = client.chat.completions.create(
        model="toy", messages=HELLO, max_tokens=12, temperature=0, logprobs=True, top_logprobs=3, stream=True
    )
    told = [choice.logprobs for chunk in stream for choice in chunk.choices if choice.logprobs]
    assert [one for logprobs in told for one in logprobs.content or []] == content


def test_best_of_has_largest_logprob(client: openai.OpenAI):
    def create(**extra: Any) -> list[tuple[str | None, float]]:
        completion = client.chat.completions.create(
            model="toy", messages=HELLO, max_tokens=8, seed=2, temperature=1, logprobs=True, extra_body=extra
        )
        scores: list[tuple[str | None, float]] = []
        for choice in completion.choices:
            assert choice.logprobs is not None
            logprobs = [one.logprob for one in choice.logprobs.content or []]
            scores.append((choice.message.content, sum(logprobs) / len(logprobs)))
            assert choice.finish_reason == "length"  # a stop token would count too
        return scores

    four = create(n=4)
    assert create(n=2, best_of=4) == sorted(four, key=lambda one: -one[1])[:2]


def test_the_next_turn_reuses_the_conversation(lead: Lead):
    first = post(
        lead, {"messages": [{"role": "user", "content": "a new conversation"}], "max_tokens": 30}
    ).json()
    history = [
        {"role": "user", "content": "a new conversation"},
        {"role": "assistant", "content": first["choices"][0]["message"]["content"]},
        {"role": "user", "content": "and on"},
    ]
    second = post(lead, {"messages": history, "max_tokens": 3}).json()
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] >= first["usage"]["total_tokens"] - 2


def test_seed_repeats_a_reply(lead: Lead):
    body = {**BODY, "temperature": 1.0, "top_k": 0, "min_p": 0, "top_p": 1}

    def text(**extra: Any) -> str:
        return post(lead, {**body, **extra}).json()["choices"][0]["message"]["content"]

    assert text(seed=5) == text(seed=5)
    assert text(seed=2**64 - 5) == text(seed=-5)
    assert text(seed=5) != text(seed=6)
    assert len({text() for _ in range(4)} | {text(seed=-1)}) > 3


def test_stop_string_ends_the_reply(lead: Lead):
    whole = post(lead, {**BODY, "max_tokens": 60}).json()["choices"][0]["message"]["content"]
    stop = whole[20:23]
    expected = whole[: whole.find(stop)]
    for body in ({"stop": stop}, {"stop": ["@@", stop]}):
        reply = post(lead, {**BODY, "max_tokens": 60, **body}).json()
        assert reply["choices"][0]["message"]["content"] == expected
        assert reply["choices"][0]["finish_reason"] == "stop"
        assert reply["usage"]["completion_tokens"] == len(expected) + len(stop)
    chunks = chunks_of(post(lead, {**BODY, "max_tokens": 60, "stop": stop, "stream": True}))
    assert "".join(c["choices"][0]["delta"].get("content") or "" for c in chunks) == expected
    lead.until_idle()


def test_nulls_are_absent_and_unknown_fields_ignored(lead: Lead):
    names = ("model", "stream", "stop", "seed", "temperature", "tools", "logprobs", "n", "speculative")
    response = post(lead, {**BODY, **dict.fromkeys(names), "no_such_field": 1, "user": "me", "n_": 3})
    assert response.status_code == 200


def test_content_parts_roles_and_null_content(lead: Lead):
    messages = [
        {"role": "developer", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "one "}, {"type": "text", "text": "two"}]},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "function": {"name": "f"}}]},
        {"role": "tool", "tool_call_id": "1", "content": "3"},
        {"role": "user", "content": ""},
    ]
    assert post(lead, {**BODY, "messages": messages}).status_code == 200


def test_a_last_assistant_message_is_continued(lead: Lead):
    begun = [*HELLO, {"role": "assistant", "content": "It is"}]
    prompt_tokens = post(lead, {**BODY, "messages": begun}).json()["usage"]["prompt_tokens"]
    plain = post(lead, BODY).json()["usage"]["prompt_tokens"]
    assert prompt_tokens == plain + len("It is")


UNHONOURABLE: list[tuple[Any, str | None]] = [
    ({"messages": []}, "messages"),
    ({}, "messages"),
    ({"messages": "hello"}, "messages"),
    ({"messages": [{"role": "nobody", "content": "x"}]}, "messages.0.role"),
    (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": 1}]}]},
        "messages.0.content.0.type",
    ),
    ({"messages": [{"content": "x"}]}, "messages.0.role"),
    ({**BODY, "temperature": -1}, "temperature"),
    ({**BODY, "temperature": "hot"}, "temperature"),
    ({**BODY, "max_tokens": 0}, "max_tokens"),
    ({**BODY, "seed": 2**64}, "seed"),
    ({**BODY, "top_p": 2}, "top_p"),
    ({**BODY, "stop": [1]}, "stop.0"),
    ({**BODY, "tools": [{"type": "function"}]}, "tools.0.function"),
    ({**BODY, "response_format": {"type": "xml"}}, "response_format.type"),
    ({**BODY, "n_beams": 9}, "n_beams"),
    ({**BODY, "n_beams": 2, "n": 2}, "n_beams"),
    ({**BODY, "n_beams": 2, "best_of": 2}, "n_beams"),
    ({**BODY, "n_beams": 2, "context_shift": True}, "n_beams"),
    ({**BODY, "n_beams": 2, "mirostat": 2}, "n_beams"),
    ({**BODY, "n_beams": 2, "repeat_penalty": 1.1}, "n_beams"),
    ({**BODY, "n_beams": -1}, "n_beams"),
    ({**BODY, "n_keep": -2}, "n_keep"),
    ({**BODY, "context_shift": 1}, "context_shift"),
    ({**BODY, "grammar": "root"}, "grammar"),
    ({**BODY, "n": 9}, "n"),
    ({**BODY, "n": 3, "best_of": 2}, "best_of"),
    ({**BODY, "best_of": 2, "stream": True}, "best_of"),
    ({**BODY, "top_logprobs": 2}, "top_logprobs"),
    ({**BODY, "logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ({**BODY, "logprobs": 3}, "logprobs"),
    ({**BODY, "presence_penalty": 2.5}, "presence_penalty"),
    ({**BODY, "frequency_penalty": "1"}, "frequency_penalty"),
    ({**BODY, "repeat_penalty": 0}, "repeat_penalty"),
    ({**BODY, "typical_p": -0.1}, "typical_p"),
    ({**BODY, "mirostat": 3}, "mirostat"),
    ({**BODY, "mirostat": True}, "mirostat"),
    ({**BODY, "min_tokens": 21}, "min_tokens"),
    ({**BODY, "samplers": ["top_k", "adaptive_p"]}, "samplers"),
    ({**BODY, "samplers": "top_k;nucleus;top_p"}, "samplers"),
    ({**BODY, "logit_bias": {"259": 1}}, "logit_bias"),
    ({**BODY, "logit_bias": {"9" * 5000: 1}}, "logit_bias"),
    ({**BODY, "logit_bias": [["9" * 5000, 1]]}, "logit_bias"),
    ({**BODY, "logit_bias": {"1": True}}, "logit_bias"),
    ({**BODY, "logit_bias": [[1]]}, "logit_bias"),
    ({**BODY, "logit_bias": [[None, 1]]}, "logit_bias"),
    ({**BODY, "logit_bias": 1}, "logit_bias"),
    ({**BODY, "logit_bias": {str(token): "x" for token in range(1025)}}, "logit_bias"),
    ({**BODY, "logit_bias": [[1, 1]] * 1025}, "logit_bias"),
    ({**BODY, "dry_sequence_breakers": ["\n", ""]}, "dry_sequence_breakers.1"),
    ({**BODY, "prediction": {"type": "text", "content": "x"}}, "prediction.type"),
    ({**BODY, "prediction": {"type": "content"}}, "prediction.content"),
    ({**BODY, "speculative": {"n_max": -1}}, "speculative.n_max"),
    ({**BODY, "speculative": {"n_max": 2, "n_min": 3}}, "speculative.n_min"),
    ({**BODY, "speculative": {"p_min": 1.5}}, "speculative.p_min"),
    ({**BODY, "speculative": {"exactness": "off"}}, "speculative.exactness"),
    ({**BODY, "speculative": {"drafters": "d"}}, "speculative.drafters"),
    ({**BODY, "speculative": {"k": 1}}, "speculative.k"),
    ({**BODY, "speculative": "off"}, "speculative"),
    ({**BODY, "exactness": "width-stable"}, "exactness"),
    ({**BODY, "drafters": []}, "drafters"),
    ({**BODY, "max_tokens": "20"}, "max_tokens"),
    ({**BODY, "stream": "yes"}, "stream"),
    ({**BODY, "timings_per_token": 1}, "timings_per_token"),
    ([], None),
    ("text", None),
]


@pytest.mark.parametrize(("body", "param"), UNHONOURABLE, ids=str)
def test_unsupported_field_is_named_400(lead: Lead, body: Any, param: str | None):
    response = post(lead, body)
    assert response.status_code == 400
    validate("Error", response.json())
    error = response.json()["error"]
    assert error["type"] == "invalid_request_error"
    if param is not None:
        assert error["param"] == param
    lead.until_idle()


@pytest.mark.parametrize("data", [b"", b"{", b'{"messages": [}', b"\xff\xfe", b"[" * 100_000])
def test_malformed_json_is_a_400(lead: Lead, data: bytes):
    response = httpx.post(f"{lead.url}/v1/chat/completions", content=data)
    assert response.status_code == 400
    validate("Error", response.json())


def test_long_prompt_is_refused_like_openai(lead: Lead, client: openai.OpenAI):
    with pytest.raises(openai.BadRequestError, match="This model's maximum context length is 1024") as caught:
        client.chat.completions.create(model="toy", messages=[{"role": "user", "content": "x" * 100_000}])
    assert caught.value.code == "context_length_exceeded"


def test_an_unknown_model_is_a_404(client: openai.OpenAI):
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(model="gpt-9", messages=HELLO)
    assert caught.value.code == "model_not_found"


def test_too_large_a_body_is_refused(lead: Lead):
    response = httpx.post(f"{lead.url}/v1/chat/completions", content=b" " * (33 << 20))
    assert response.status_code == 413
    validate("Error", response.json())


def test_full_queue_is_429_with_retry(slow_lead: Lead):
    url = f"{slow_lead.url}/v1/chat/completions"
    body = {"messages": HELLO, "stream": True}
    with httpx.stream("POST", url, json=body) as running:
        arriving = running.iter_raw()
        next(arriving)
        with connection(slow_lead, body):
            slow_lead.until(lambda engine: engine.n_waiting == 1)
            response = post(slow_lead, BODY)
        assert response.status_code == 429
        assert int(response.headers["retry-after"]) >= 1
        validate("Error", response.json())
    slow_lead.until_idle()


def connection(lead: Lead, body: dict[str, Any]) -> socket.socket:
    """Send a request by hand and return its connection, whose answer nobody reads."""
    parts = urlsplit(lead.url)
    data = json.dumps(body).encode()
    link = socket.create_connection((parts.hostname, parts.port))
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: duo\r\nContent-Length: {len(data)}\r\n\r\n"
    link.sendall(head.encode() + data)
    return link
