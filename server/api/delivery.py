"""A reply on its way to a client who may go away: whole, or as a stream of server-sent events."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine
from typing import Any, Protocol, TypeVar

import orjson
from sse_starlette import EventSourceResponse
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

T = TypeVar("T")

KEEP_ALIVE_S = 15
DRAIN_S = 3600  # a running stream outlives the request to stop: uvicorn's grace time bounds it
STREAM_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


class Json(Response):
    """content: an object, or JSON already."""

    media_type = "application/json"

    def render(self, content: object) -> bytes:
        return content if isinstance(content, bytes) else orjson.dumps(content)


class Deliverable(Protocol):
    """What a route has to say: begin it, then take it whole or in chunks."""

    async def begin(self) -> None:
        """Wait until the engine takes it up. Raises the error if it fails before that."""
        ...

    async def whole(self) -> bytes:
        """The JSON of all of it."""
        ...

    def chunks(self) -> AsyncIterator[bytes]:
        """Server-sent events, one or more at a time, each complete with its blank line."""
        ...

    def cancel(self) -> None:
        """Nobody will read the rest."""
        ...


async def deliver(request: Request, reply: Deliverable, *, stream: bool) -> Response:
    """The reply whole, or a stream that begins once the engine has taken the request up, so that every
    refusal before that is a real HTTP status. However it ends, so do its generations."""
    try:
        if not stream:
            return Json(await unless_gone(request, reply.whole()))
        await unless_gone(request, reply.begin())
    except BaseException:
        reply.cancel()
        raise
    return _Stream(reply)


class _Stream(EventSourceResponse):
    """The chunks of one reply. However it ends, even before its first chunk, so do its generations."""

    def __init__(self, reply: Deliverable) -> None:
        super().__init__(
            reply.chunks(),
            headers=STREAM_HEADERS,
            ping=KEEP_ALIVE_S,
            sep="\n",
            media_type="text/event-stream",
            shutdown_grace_period=DRAIN_S,
        )
        self._reply = reply

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._reply.cancel()


def warm_up() -> None:
    """To be called in the event loop, before the first request: the first stream of all loads modules, for
    tens of milliseconds."""
    EventSourceResponse(_nothing())


async def _nothing() -> AsyncIterator[bytes]:
    return
    yield b""


async def unless_gone(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The work's result. Raises ClientDisconnect, the work cancelled, if the client goes away before."""
    task = asyncio.ensure_future(work)
    watch = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait((task, watch), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        for one in (task, watch):
            one.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await one


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
