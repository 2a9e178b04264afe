"""What a client may take of the server by its connection alone."""

from __future__ import annotations

import json
import logging
import socket
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any, cast
from urllib.parse import urlsplit

import httpx
import pytest

from server.api.connection import MAX_HEAD, MAX_HEADERS, BoundedConnection, ConnectionBounds
from server.api.middleware import Edge
from server.lead.listening import ClientPolicy
from tests.contract.contract import validate
from tests.fake_backend import FakeBackend, FakeModel
from tests.http_lead import Lead, serving

WAIT_S = 30
HEAD = b"POST /tokenize HTTP/1.1\r\nHost: duo\r\n"
BODY = b'{"content": "hi"}'


@contextmanager
def bounded(**bounds: Any) -> Generator[Lead]:
    backend = FakeBackend(FakeModel(eog_rate=0.0), n_ctx=100_000, n_cells=100_000)
    door = ClientPolicy(Edge(), None, 0, ConnectionBounds(**bounds))
    with serving(backend, door=door, n_slots=1) as lead:
        yield lead


@contextmanager
def connected(lead: Lead) -> Generator[socket.socket]:
    parts = urlsplit(lead.url)
    with socket.create_connection((parts.hostname, parts.port), timeout=WAIT_S) as link:
        yield link


def read(link: socket.socket) -> bytes:
    """Return everything until the server closes."""
    data = b""
    while part := link.recv(1 << 16):
        data += part
    return data


def answer(link: socket.socket) -> tuple[int, Any]:
    """Return status and JSON of one answer after which the server closes."""
    head, _, body = read(link).partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)


def with_body(*headers: bytes) -> bytes:
    lines = [b"Content-Length: %d" % len(BODY), b"Connection: close", *headers]
    return HEAD + b"\r\n".join(lines) + b"\r\n\r\n" + BODY


@pytest.mark.parametrize(
    "data",
    [
        HEAD + b"X-Large: " + b"x" * MAX_HEAD,
        HEAD + b"x: y\r\n" * (MAX_HEAD // 6),
        b"POST /" + b"x" * MAX_HEAD,
        with_body(*[b"x: y"] * (MAX_HEADERS - 2)),
    ],
    ids=["one header", "small headers", "the path", "their number"],
)
def test_large_head_is_early_431(data: bytes):
    with bounded() as lead, connected(lead) as link:
        link.sendall(data)
        status, body = answer(link)
        assert status == 431
        validate("Error", body)


def test_a_head_within_the_bounds_is_served():
    with bounded() as lead:
        for headers in ([b"x: y"] * (MAX_HEADERS - 3), [b"x: " + b"y" * (MAX_HEAD - 1000)]):
            with connected(lead) as link:
                link.sendall(with_body(*headers))
                assert answer(link) == (200, {"tokens": [104, 105]})


def test_non_http_is_json_400():
    with bounded() as lead, connected(lead) as link:
        link.sendall(b"\x16\x03\x01 hello\r\n\r\n")
        status, body = answer(link)
        assert status == 400
        validate("Error", body)


def test_split_body_is_no_head():
    def parts() -> Iterator[bytes]:
        yield b'{"content": "'
        yield from (b"x" for _ in range(MAX_HEAD // 4))
        yield b'"}'

    with bounded() as lead:
        response = httpx.post(f"{lead.url}/tokenize", content=parts(), timeout=WAIT_S)
        assert len(response.json()["tokens"]) == MAX_HEAD // 4


def test_trailers_count():
    with bounded() as lead, connected(lead) as link:
        chunked = HEAD + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n" % (len(BODY), BODY)
        try:
            link.sendall(chunked + b"x: y\r\n" * MAX_HEAD)
            assert b" 200 " not in read(link)
        except OSError:
            pass  # it has been closed while there was more to send
        assert httpx.get(f"{lead.url}/health").status_code == 200


@pytest.mark.parametrize("first", [b"", HEAD])
def test_unfinished_head_closes_connection(first: bytes):
    with bounded(head_s=0.05) as lead, connected(lead) as link:
        link.sendall(first)
        assert read(link) == b""


def test_unfinished_later_head_closes_connection():
    bounds = ConnectionBounds()
    with serving(FakeBackend(), door=ClientPolicy(Edge(), None, 0, bounds)) as lead, connected(lead) as link:
        link.sendall(with_body().replace(b"Connection: close\r\n", b""))
        said = b""
        while not said.endswith(b"}"):
            said += link.recv(1 << 16)
        bounds.head_s = 0.05
        link.sendall(HEAD)
        assert read(link) == b""


def test_request_outlives_the_head_timeout():
    with bounded() as lead, connected(lead) as link:
        link.sendall(HEAD)
        lead.until(lambda _: [bool(one._head_timer) for one in connections(lead)] == [True])  # pyright: ignore[reportPrivateUsage]
        link.sendall(b"Content-Length: 10\r\n\r\n")
        lead.until(lambda _: [bool(one._head_timer) for one in connections(lead)] == [False])  # pyright: ignore[reportPrivateUsage]


def connections(lead: Lead) -> list[BoundedConnection]:
    return cast(list[BoundedConnection], list(lead.server.server_state.connections))


def test_excess_connections_close_and_log_once(
    caplog: pytest.LogCaptureFixture,
):
    with bounded(most=1) as lead, connected(lead) as first:
        first.sendall(with_body()[:20])
        for _ in range(2):
            with connected(lead) as link:
                assert read_or_reset(link) == b""
        first.sendall(with_body()[20:])
        assert answer(first)[0] == 200
    warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 1
    assert "ulimit" in warnings[0].getMessage()


def read_or_reset(link: socket.socket) -> bytes:
    try:
        return read(link)
    except ConnectionResetError:
        return b""


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}], "n_probs": 20}),
        ("/v1/completions", {"prompt": "hi", "n_probs": 20, "max_tokens": 90_000}),
        ("/v1/responses", {"input": "hi", "top_logprobs": 20}),
    ],
)
def test_a_reply_that_nobody_reads_ends(path: str, asked: dict[str, Any], caplog: pytest.LogCaptureFixture):
    with bounded(write_s=0.05) as lead:
        body = {"stream": True, **asked}
        data = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: duo\r\nContent-Length: {len(data)}\r\n\r\n".encode()
        parts = urlsplit(lead.url)
        with socket.socket() as link:
            link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            link.connect((parts.hostname, parts.port))
            link.sendall(head + data)
            lead.until(lambda engine: bool(engine.n_active))
            lead.until_idle()
    assert "read nothing of its reply" in caplog.text
    assert lead.services.traffic.endings["cancelled"] == 1
