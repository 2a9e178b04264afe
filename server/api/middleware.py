"""Middleware for every request: ids, timing, limits on bodies, handling of unexpected errors.

These layers are plain ASGI, so that handlers notice when the client disconnects.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from dataclasses import dataclass, field

from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from server.api import problem
from server.api.access import NOBODY, PUBLIC, PUBLIC_BELOW, SOCKET, Access, Caller, offered
from server.api.origins import check_headers
from server.api.request_log import MAX_LOGGED_BYTES, Line, RequestLog
from server.engine.request_account import CURRENT, RequestAccount
from server.errors import BusyError, DuoError, InvalidRequestError

MAX_BODY = 32 << 20
"""Maximum bytes of a body."""
BODY_S = 600.0
"""Seconds for a body to arrive."""


@dataclass(frozen=True, slots=True)
class Edge:
    """Settings of the middleware."""

    access: Access = field(default_factory=Access)
    # origins of other web pages that may use the server; "*": all; LOCAL: any on this machine
    cors_origins: tuple[str, ...] = ()
    max_body: int = MAX_BODY  # bytes
    body_s: float = BODY_S  # seconds for a body to arrive
    log: RequestLog = field(default_factory=RequestLog)
    local: bool = False  # without keys: answer only requests whose Host names this machine


class Cors(CORSMiddleware):
    """Answers every preflight request with 200, as llama-server does."""

    def preflight_response(self, request_headers: Headers) -> Response:
        response = super().preflight_response(request_headers)
        response.status_code = 200
        return response


class RequestFrame:
    """The outermost layer: gives a request its id and RequestAccount, limits its body, and logs one line.

    It sets x-request-id (the client's own, if sent), request-id (Anthropic's name) and openai-processing-ms.
    """

    def __init__(self, app: ASGIApp, *, edge: Edge) -> None:
        self._app = app
        self._edge = edge

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket" and scope["path"] != SOCKET:
            await send({"type": "websocket.close"})
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.perf_counter()
        account = RequestAccount(id=_request_id(scope))
        body = _Body(scope, receive, self._edge)
        line = Line(scope["method"], scope["path"], account)

        async def framed_send(message: Message) -> None:
            if message["type"] == "http.response.start":
                line.status = message["status"]
                line.first_ms = (time.perf_counter() - began) * 1e3
                headers = MutableHeaders(scope=message)
                headers["x-request-id"] = headers["request-id"] = account.id
                headers["openai-processing-ms"] = str(round(line.first_ms))
            await send(message)

        token = CURRENT.set(account)
        try:
            await self._app(scope, body.receive, framed_send)
        finally:
            CURRENT.reset(token)
            if self._edge.log.requests:
                line.ms = (time.perf_counter() - began) * 1e3
                line.key = scope.get("state", {}).get("caller", NOBODY).name
                line.body = bytes(body.kept)
                line.log()


def _request_id(scope: Scope) -> str:
    asked = Headers(scope=scope).get("x-request-id", "")
    fits = asked.isascii() and asked.isprintable() and 0 < len(asked) <= 128
    return asked if fits else f"req_{secrets.token_hex(12)}"


class _Body:
    """The body of one request as it arrives."""

    def __init__(self, scope: Scope, receive: Receive, edge: Edge) -> None:
        self.kept = bytearray()  # the body's beginning, if bodies are logged
        self._receive = receive
        self._edge = edge
        self._encoding = Headers(scope=scope).get("content-encoding", "").strip().lower()
        announced = Headers(scope=scope).get("content-length", "0")[:18]  # int() of many digits is slow
        self._n_announced = int(announced) if announced.isascii() and announced.isdigit() else 0
        self._n_received = 0
        self._complete = False
        self._deadline = asyncio.get_running_loop().time() + edge.body_s

    async def receive(self) -> Message:
        """Return ASGI's next message.

        Raises:
            InvalidRequestError: The body is late (status 408), too large (413) or compressed (415).
        """
        if self._complete:  # only the client's disconnect message may follow
            return await self._receive()
        edge = self._edge
        if self._encoding not in ("", "identity"):
            raise InvalidRequestError(
                "the body must not be compressed: send it without Content-Encoding", status=415
            )
        self._check_size(self._n_announced)
        try:
            async with asyncio.timeout_at(self._deadline):
                message = await self._receive()
        except TimeoutError as error:
            raise InvalidRequestError(
                f"the body has not arrived within {edge.body_s:g} s", status=408
            ) from error
        chunk = message.get("body", b"")
        self._n_received += len(chunk)
        self._check_size(self._n_received)
        if edge.log.prompts and len(self.kept) < MAX_LOGGED_BYTES:
            self.kept += chunk
        self._complete = not message.get("more_body", False)
        return message

    def _check_size(self, n: int) -> None:
        if n > self._edge.max_body:
            raise InvalidRequestError(f"the body is larger than {self._edge.max_body} bytes", status=413)


class AccessGate:
    """Sets request.state.caller, and answers requests without a valid key with 401.

    If the server has no keys, it answers requests of foreign web pages with 403.
    """

    def __init__(self, app: ASGIApp, *, edge: Edge) -> None:
        self._app = app
        self._edge = edge

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        caller = NOBODY
        if not (scope["path"] in PUBLIC or scope["path"].startswith(PUBLIC_BELOW)):
            try:
                caller = self._admit_caller(Headers(scope=scope))
            except InvalidRequestError as error:
                if scope["type"] == "websocket":
                    await send({"type": "websocket.close"})  # closing before accepting gives a 403
                    return
                await problem.respond(error, scope["path"])(scope, receive, send)
                return
        scope.setdefault("state", {})["caller"] = caller
        if (account := CURRENT.get()) is not None and len(self._edge.access.callers) > 1:
            account.tenant = caller.name
        await self._app(scope, receive, send)

    def _admit_caller(self, headers: Headers) -> Caller:
        if self._edge.access.callers == [NOBODY]:
            check_headers(headers, self._edge.cors_origins, local=self._edge.local)
        return self._edge.access.admit(offered(headers))


class DefectNet:
    """Turns unexpected exceptions into error responses, and cancellations at shutdown into 503.

    Starlette's own handler runs outside all middleware, so its responses would have no request id.
    """

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
        except (Exception, asyncio.CancelledError) as error:
            if began or scope["type"] != "http":
                raise
            failed: DuoError = BusyError("the server is shutting down", draining=True)
            if isinstance(error, Exception):
                failed = problem.defect(f"{scope['method']} {scope['path']}", error)
            response = problem.respond(failed, scope["path"])
            await response(scope, receive, send)
