"""Odd, extreme and malformed requests: a right answer, or a clear 4xx."""

from __future__ import annotations

import gzip
import json
import socket
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from server.api.chat.chat_request import ChatRequest
from tests.contract.contract import validate
from tests.fake_backend import FakeBackend, FakeModel
from tests.http_lead import Lead, serving

HELLO: list[Any] = [{"role": "user", "content": "hi"}]
BODY: dict[str, Any] = {"messages": HELLO, "max_tokens": 6}


def post(lead: Lead, body: Any) -> httpx.Response:
    return httpx.post(f"{lead.url}/v1/chat/completions", json=body, timeout=30)


def post_bytes(lead: Lead, data: Any, **headers: str) -> httpx.Response:
    headers = {"content-type": "application/json", **headers}
    return httpx.post(f"{lead.url}/v1/chat/completions", content=data, headers=headers, timeout=30)


def text_of(response: httpx.Response) -> str:
    assert response.status_code == 200, response.text
    return response.json()["choices"][0]["message"]["content"]


def refused(response: httpx.Response, status: int = 400) -> dict[str, Any]:
    assert response.status_code == status, response.text
    validate("Error", response.json())
    return response.json()["error"]


def with_content(content: str) -> bytes:
    """Return a body with `content`, JSON as it stands."""
    return b'{"max_tokens": 2, "messages": [{"role": "user", "content": %s}]}' % content.encode()


def with_field(field: str) -> bytes:
    return b'{"messages": [{"role": "user", "content": "hi"}], %s}' % field.encode()


@pytest.mark.parametrize(
    "data",
    [
        with_field('"x": ' + "[" * 10_000 + "]" * 10_000),
        with_field('"x": ' + '{"a":' * 10_000 + "1" + "}" * 10_000),
        with_content('"a\x00b"'),
        with_field('"temperature": NaN'),
        with_field('"temperature": Infinity'),
        with_field('"temperature": 1e999'),
        with_field('"seed": ' + "9" * 5000),
        b"\xef\xbb\xbf" + json.dumps(BODY).encode(),
        json.dumps(BODY).encode("utf-16"),
        json.dumps(BODY).encode() + b"{}",
        b"messages=hi",
    ],
    ids=lambda data: repr(data[:50]),
)
def test_invalid_json_names_the_place(lead: Lead, data: bytes):
    assert "not valid JSON" in refused(post_bytes(lead, data))["message"]


@pytest.mark.parametrize(
    ("written", "read"),
    [
        (b"a\\ud83d", "a\ufffd"),
        (b"\\udc00\\ud800b", "\ufffd\ufffdb"),
        (b"\\uD83D\\uDE00 \\ud83d", "😀 \ufffd"),
        (b"\\\\ud83d \\udE00", "\\ud83d \ufffd"),
        (b"\xed\xa0\x80", "\ufffd\ufffd\ufffd"),
        (b"\xf0\x9f\x98", "\ufffd"),
    ],
    ids=repr,
)
def test_half_characters_are_replaced(lead: Lead, written: bytes, read: str):
    body = b'{"messages": [{"role": "user", "content": "%s"}]}' % written
    prompt = httpx.post(f"{lead.url}/apply-template", content=body).json()["prompt"]
    assert f"user\n{read}<" in prompt


DEEP = "[" * 1000 + "]" * 1000
SCHEMA = '{"items":' * 900 + "{}" + "}" * 900


@pytest.mark.parametrize(
    ("field", "param"),
    [
        (f'"logit_bias": {DEEP}', "logit_bias"),
        (f'"stop": {DEEP}', "stop.0"),
        (f'"tools": {DEEP}', "tools.0"),
        (f'"speculative": {DEEP}', "speculative"),
        (f'"json_schema": {SCHEMA}', "json_schema"),
        (
            f'"tool_choice": "required", "tools": [{{"type": "function", "function": '
            f'{{"name": "f", "parameters": {SCHEMA}}}}}]',
            None,
        ),
    ],
    ids=["logit_bias", "stop", "tools", "speculative", "json_schema", "parameters"],
)
def test_deep_nesting_is_refused_by_name(lead: Lead, field: str, param: str | None):
    error = refused(post_bytes(lead, with_field(field)))
    assert param is None or error["param"] == param


@pytest.mark.parametrize("field", [f'"x": {DEEP}', f'"chat_template_kwargs": {{"x": {DEEP}}}'])
def test_ignored_fields_may_nest_deeply(lead: Lead, field: str):
    assert post_bytes(lead, with_field(f'"max_tokens": 2, {field}')).status_code == 200


def test_last_duplicate_field_counts(lead: Lead):
    data = with_field('"max_tokens": 1, "max_tokens": 3')
    assert post_bytes(lead, data).json()["usage"]["completion_tokens"] == 3


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""]
)
def test_body_is_always_json(lead: Lead, kind: str):
    answered = post_bytes(lead, json.dumps(BODY), **{"content-type": kind})
    assert text_of(answered) == text_of(post(lead, BODY))


@pytest.mark.parametrize(
    "path", ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/tokenize", "/rpc"]
)
@pytest.mark.parametrize("encoding", ["gzip", "br", "identity, gzip"])
def test_a_compressed_body_is_a_415(lead: Lead, path: str, encoding: str):
    data = gzip.compress(json.dumps(BODY).encode())
    response = httpx.post(lead.url + path, content=data, headers={"content-encoding": encoding})
    assert "Content-Encoding" in refused(response, 415)["message"]


def test_a_body_may_come_in_pieces(lead: Lead):
    def pieces() -> Iterator[bytes]:
        for byte in json.dumps(BODY).encode():
            yield bytes([byte])

    assert text_of(post_bytes(lead, pieces())) == text_of(post(lead, BODY))


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("OPTIONS", "/v1/chat/completions", 405),
        ("HEAD", "/v1/chat/completions", 405),
        ("HEAD", "/v1/models", 200),
        ("HEAD", "/v1/nothing", 404),
        ("TRACE", "/v1/models", 405),
        ("PATCH", "/v1/chat/completions", 405),
        ("GET", "/v1/models/" + "a" * 50_000, 404),
        ("GET", "/v1/models/%ff%00%0a", 404),
        ("POST", "/slots/%30?action=erase&action=save", 501),
        ("GET", "/web/%2e%2e/%2e%2e/pyproject.toml", 404),
    ],
    ids=lambda value: str(value)[:40],
)
def test_odd_methods_and_paths(lead: Lead, method: str, path: str, status: int):
    response = httpx.request(method, lead.url + path)
    assert response.status_code == status
    assert response.headers["x-request-id"]
    if method == "HEAD":
        assert response.content == b""
    else:
        validate("Error", response.json())


def exchanged(lead: Lead, data: bytes) -> bytes:
    """Return the answer to these bytes, until the connection is closed."""
    parts = urlsplit(lead.url)
    with socket.create_connection((parts.hostname, parts.port), timeout=20) as link:
        link.sendall(data)
        link.shutdown(socket.SHUT_WR)
        received = bytearray()
        while part := link.recv(65536):
            received += part
        return bytes(received)


@pytest.mark.parametrize(
    "head",
    [
        b"FETCH / HTTP/1.1\r\nHost: duo\r\n\r\n",
        b"GET / HTTP/9.9.9\r\n\r\n",
        b"POST /tokenize HTTP/1.1\r\nHost: duo\r\nContent-Length: -1\r\n\r\n{}",
        b"POST /tokenize HTTP/1.1\r\nHost: duo\r\nContent-Length: 2, 3\r\n\r\n{}",
        b"POST /tokenize HTTP/1.1\r\nHost: duo\r\nTransfer-Encoding: chunked\r\n\r\nnonsense\r\n",
    ],
    ids=lambda head: repr(head[:60]),
)
def test_non_http_is_400(lead: Lead, head: bytes):
    assert exchanged(lead, head).startswith(b"HTTP/1.1 400 ")


def test_a_very_long_header_does_no_harm(lead: Lead):
    data = json.dumps(BODY)
    long = post_bytes(lead, data, **{"x-long": "a" * 30_000, "x-request-id": "b" * 30_000})
    assert text_of(long) == text_of(post(lead, BODY))
    assert long.headers["x-request-id"].startswith("req_")


@pytest.mark.parametrize(
    ("part", "place"),
    [
        ({"type": "image_url", "image_url": {"url": "data:image/png;base64,"}}, "content.0.type"),
        ({"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}, "content.0.type"),
        ({"type": "file", "file": {"file_id": "1"}}, "content.0.type"),
        ({"type": None, "text": "x"}, "content.0.type"),
        ({"text": "x"}, "content.0.type"),
        ({"type": "text"}, "content.0.text"),
        ({"type": "text", "text": 1}, "content.0.text"),
        (None, "content.0"),
        ("x", "content.0"),
    ],
    ids=str,
)
def test_non_text_parts_are_refused(lead: Lead, part: Any, place: str):
    body = {**BODY, "messages": [*HELLO, {"role": "user", "content": [part]}]}
    assert refused(post(lead, body))["param"] == f"messages.1.{place}"


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "user", "content": ""}],
        [{"role": "user", "content": []}],
        [{"role": "user", "content": [{"type": "text", "text": ""}]}],
        [{"role": "user"}],
        [{"role": "system", "content": None}],
        [{"role": "developer", "content": ""}, {"role": "user", "content": "", "name": ""}],
        [{"role": "assistant", "content": ""}],
        [{"role": "tool", "content": ""}],
        [{"role": "user", "content": "a\x00b"}],
    ],
    ids=str,
)
def test_empty_messages_are_messages(lead: Lead, messages: list[Any]):
    assert post(lead, {**BODY, "messages": messages}).json()["usage"]["completion_tokens"] > 0


def test_a_developer_is_the_system(lead: Lead):
    def prompt(role: str) -> str:
        messages = [{"role": role, "content": "be brief"}, *HELLO]
        return httpx.post(f"{lead.url}/apply-template", json={"messages": messages}).json()["prompt"]

    assert prompt("developer") == prompt("system") != prompt("user")


EMPTY: dict[str, Any] = {
    "stop": ["", ""],
    "model": "",
    "grammar": "",
    "cache_salt": "",
    "tools": [],
    "stream_options": {},
    "logit_bias": {},
    "prediction": {"type": "content", "content": ""},
    "response_format": {"type": "text"},
    "chat_template_kwargs": {},
    "speculative": {},
}


@pytest.mark.parametrize("name", [*EMPTY, "stop="])
def test_empty_fields_change_nothing(lead: Lead, name: str):
    given = {"stop": ""} if name == "stop=" else {name: EMPTY[name]}
    assert text_of(post(lead, {**BODY, **given})) == text_of(post(lead, BODY))


@pytest.mark.parametrize("name", [name for name in ChatRequest.model_fields if name not in BODY])
def test_null_is_absence(lead: Lead, name: str):
    body = {**BODY, "temperature": 0, name: None}
    assert text_of(post(lead, body)) == text_of(post(lead, BODY))


def test_a_prompt_of_100k_characters_is_evaluated():
    backend = FakeBackend(FakeModel(seed=3), n_ctx=120_000, n_cells=130_000, n_batch=2048)
    with serving(backend) as lead:
        body = {**BODY, "messages": [{"role": "user", "content": "long " * 20_000}]}
        reply = post(lead, body).json()
        assert reply["usage"]["prompt_tokens"] > 100_000
        assert reply["usage"]["completion_tokens"] == 6


@pytest.mark.parametrize("content", [5, {"type": "text", "text": "x"}])
def test_wrong_content_is_named_as_sent(lead: Lead, content: Any):
    error = refused(post(lead, {"messages": [{"role": "user", "content": content}]}))
    assert (error["param"], error["message"]) == (
        "messages.0.content",
        "messages.0.content: must be a text or a list",
    )


def test_parts_of_responses_are_texts(lead: Lead):
    def asked(*types: str) -> str:
        parts = [{"type": type, "text": "look"} for type in types]
        return text_of(post(lead, {"messages": [{"role": "user", "content": parts}], "max_tokens": 6}))

    assert asked("input_text", "output_text") == asked("text", "text")
