"""What holds every reply of the test suite against the contract finds what is wrong, and sees all apps."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest

from tests.contract.witness import Message, Receive, Send, witnessed

FRAME = [(b"x-request-id", b"req_1"), (b"openai-processing-ms", b"1")]
JSON = (b"content-type", b"application/json")
STREAM = (b"content-type", b"text/event-stream; charset=utf-8")
ERROR = b'{"error":{"message":"no","type":"server_error","param":null,"code":null}}'
RETRY = (b"retry-after", b"1")
READY = b'{"status":"ok"}'


async def faults_of(method: str, path: str, status: int, headers: list[Any], *bodies: bytes) -> list[str]:
    """Return what the witness says about an answer."""
    found: list[str] = []

    async def app(_: Message, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": status, "headers": headers})
        for body in bodies[:-1]:
            await send({"type": "http.response.body", "body": body, "more_body": True})
        await send({"type": "http.response.body", "body": bodies[-1]})

    async def nothing() -> Message:
        return {"type": "http.disconnect"}

    async def ignored(_: Message) -> None:
        pass

    scope: Message = {"type": "http", "method": method, "path": path, "headers": []}
    await witnessed(app, found)(scope, nothing, ignored)
    return found


@pytest.mark.parametrize(
    ("method", "path", "status", "headers", "bodies"),
    [
        ("GET", "/ready", 200, [JSON], [READY]),
        ("GET", "/ready", 200, [JSON], [READY[:4], READY[4:]]),
        ("HEAD", "/ready", 200, [JSON], [b""]),
        ("GET", "/ready", 503, [JSON, RETRY], [b'{"status":"loading"}']),
        ("POST", "/chat/completions", 400, [JSON], [ERROR]),
        ("POST", "/v1/chat/completions", 200, [STREAM], [b": ping\n\nda", b"ta: " + ERROR + b"\n\n"]),
        ("POST", "/v1/chat/completions", 200, [STREAM], [b"data: [DONE]\n\n"]),
        ("POST", "/rpc", 204, [], [b""]),
        ("GET", "/v1/models/a/b", 404, [JSON], [ERROR]),
        ("GET", "/nowhere", 404, [JSON], [ERROR]),
        ("PUT", "/ready", 405, [JSON], [ERROR]),
        ("POST", "/v1/completions", 499, [], [b""]),
    ],
)
async def test_contractual_answer_is_no_fault(
    method: str, path: str, status: int, headers: list[Any], bodies: list[bytes]
):
    assert await faults_of(method, path, status, [*FRAME, *headers], *bodies) == []


@pytest.mark.parametrize(
    ("path", "status", "headers", "bodies", "fault"),
    [
        ("/ready", 200, [JSON], [b'{"status":"ill"}'], "at /status"),
        ("/ready", 200, [JSON], [b'{"status":"ok","more":1}'], "Additional properties"),
        ("/ready", 200, [JSON], [b'{"status":'], "no JSON"),
        ("/ready", 200, [(b"content-type", b"text/html")], [READY], "text/html"),
        ("/ready", 418, [JSON], [ERROR], "does not list 418"),
        ("/ready", 503, [JSON], [READY], "Retry-After"),
        ("/chat/completions", 200, [STREAM], [b'data: {"id":1}\n\n'], "an event"),
        ("/chat/completions", 200, [STREAM], [b"data: [DONE]"], "within an event"),
        ("/chat/completions", 200, [STREAM], [b"oops\n\n"], "oops"),
        ("/chat/completions", 400, [JSON], [b'{"error":{"message":"no"}}'], "required"),
        ("/nowhere", 200, [JSON], [b"{}"], "no such operation"),
        ("/nowhere", 404, [JSON], [b"{}"], "required"),
    ],
)
async def test_anything_else_is_one(
    path: str, status: int, headers: list[Any], bodies: list[bytes], fault: str
):
    method = "POST" if path.endswith("completions") else "GET"
    [found] = await faults_of(method, path, status, [*FRAME, *headers], *bodies)
    assert fault in found
    assert str(status) in found


async def test_every_reply_has_an_id():
    [found] = await faults_of("GET", "/ready", 200, [JSON], READY)
    assert "x-request-id" in found


def test_every_app_of_a_test_is_watched():
    def calls(node: ast.AST) -> list[str]:
        found = [one.func for one in ast.walk(node) if isinstance(one, ast.Call)]
        return [func.id for func in found if isinstance(func, ast.Name)]

    for path in (Path(__file__).parents[1]).rglob("*.py"):
        text = path.read_text()
        if "create_app" not in text and "create_waiting_app" not in text:
            continue
        tree = ast.parse(text)
        made = sum(name in ("create_app", "create_waiting_app") for name in calls(tree))
        watched = sum(
            bool({"create_app", "create_waiting_app"} & set(calls(argument)))
            for node in ast.walk(tree)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "witnessed"
            for argument in node.args
        )
        assert made == watched, path
