"""What every request passes: an id, a clock, a bound on its body, a net. Pure ASGI shows disconnects."""

from __future__ import annotations

import secrets
import time

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from server.api import problem
from server.errors import InvalidRequestError

MAX_BODY = 32 << 20  # bytes


class BodyTooLargeError(InvalidRequestError):
    status = 413


class RequestFrame:
    """Adds x-request-id (the client's, if it sent one) and openai-processing-ms; refuses large bodies."""

    def __init__(self, app: ASGIApp, *, max_body: int = MAX_BODY) -> None:
        self._app = app
        self._max_body = max_body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.perf_counter()
        asked = Headers(scope=scope).get("x-request-id", "")
        id = asked if asked.isascii() and asked.isprintable() and 0 < len(asked) <= 128 else ""
        id = id or f"req_{secrets.token_hex(12)}"
        n_received = 0

        async def bounded_receive() -> Message:
            nonlocal n_received
            message = await receive()
            n_received += len(message.get("body", b""))
            if n_received > self._max_body:
                raise BodyTooLargeError(f"the body is larger than {self._max_body} bytes")
            return message

        async def framed_send(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers["x-request-id"] = id
                headers["openai-processing-ms"] = str(round((time.perf_counter() - began) * 1e3))
            await send(message)

        await self._app(scope, bounded_receive, framed_send)


class DefectNet:
    """Answers a bug of ours in OpenAI's shape. Starlette's own handler of such errors is outside of all
    middleware: its answers would have no id."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        began = False

        async def noting_send(message: Message) -> None:
            nonlocal began
            began = True
            await send(message)

        try:
            await self._app(scope, receive, noting_send)
        except Exception as error:
            if began or scope["type"] != "http":
                raise
            response = problem.respond(problem.defect(f"{scope['method']} {scope['path']}", error))
            await response(scope, receive, send)
