"""Send an answer, whole or as server-sent events, to a client that may leave."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import orjson
from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

if TYPE_CHECKING:
    from server.api.answer import Answer

T = TypeVar("T")

KEEP_ALIVE_S = 15
"""Seconds of silence before a stream sends a keep-alive event."""
DRAIN_S = 3600
"""Seconds for which a stream may outlive the request to stop; uvicorn's grace time ends it earlier."""


class Json(Response):
    """A response of an object, or of bytes that are JSON already."""

    media_type = "application/json"

    def render(self, content: object) -> bytes:
        return content if isinstance(content, bytes) else orjson.dumps(content)


async def deliver(request: Request, answer: Answer, *, stream: bool) -> Response:
    """Return the whole answer, or a stream.

    A stream begins once the engine has started the request, so any refusal before that has its HTTP status.
    When the response ends, for any reason, its generations are cancelled.
    """
    try:
        if not stream:
            return Json(await unless_gone(request, answer.whole()))
        await unless_gone(request, answer.begin())
    except BaseException:
        answer.cancel()
        raise
    return _Stream(answer)


class Relay(EventSourceResponse):
    """A stream of events that are written elsewhere: its end cancels nothing."""

    def __init__(self, chunks: AsyncIterator[bytes], keep_alive: tuple[str, str] | None = None) -> None:
        super().__init__(
            chunks,
            headers={"Cache-Control": "no-cache"},
            ping=KEEP_ALIVE_S,
            ping_message_factory=keep_alive and partial(_event_of, *keep_alive),
            sep="\n",
            shutdown_grace_period=DRAIN_S,
        )

    async def _send_with_timeout(self, send: Send, message: Message) -> None:
        """Send without a timeout: it would take a ninth of a token's loop time (RESULTS T)."""
        await send(message)


class _Stream(Relay):
    """The chunks of one answer. Cancels the generations when it ends, even before the first chunk."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer.chunks(), answer.keep_alive)
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._answer.cancel()


def _event_of(name: str, data: str) -> ServerSentEvent:
    return ServerSentEvent(data, event=name, sep="\n")


def warm_up() -> None:
    """Load the modules of streams, for tens of milliseconds; call it on the loop before any request."""
    EventSourceResponse(iter(()))


async def unless_gone(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Return the result of `work`; cancel it and raise ClientDisconnect if the client leaves first."""
    task = asyncio.ensure_future(work)
    watch = asyncio.ensure_future(_wait_for_disconnect(request))
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


async def _wait_for_disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
