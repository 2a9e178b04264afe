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

from server.api.resumed import begin_stream, end_stream
from server.errors import BusyError

if TYPE_CHECKING:
    from server.api.answer import Answer
    from server.api.services import Services

T = TypeVar("T")

KEEP_ALIVE_S = 15
"""Seconds of silence before a stream sends a keep-alive event."""
NEVER_S = 1 << 30
"""Seconds between pings, so long that none is sent: for streams whose log contains pings already."""
CONVERSATION = "x-conversation-id"
"""llama-server's header that names a conversation, so that its latest reply can be read again."""
DRAIN_S = 3600
"""Maximum seconds that a stream continues when the server stops; uvicorn's grace time ends it earlier."""


class Json(Response):
    """A JSON response, made of an object or of bytes that are JSON already."""

    media_type = "application/json"

    def render(self, content: object) -> bytes:
        return content if isinstance(content, bytes) else orjson.dumps(content)


async def deliver(request: Request, answer: Answer, *, stream: bool) -> Response:
    """Return a response with the whole answer, or with a stream of events.

    A stream begins once the engine has started the request, so a refusal before that has its own HTTP
    status. When the response ends, for any reason, its generations are cancelled. But if a header of the
    request names a conversation, the stream continues and can be read again (resumed.py).
    """
    if stream and (conversation := request.headers.get(CONVERSATION)):
        return await resumable(request, answer, conversation)
    try:
        if not stream:
            return Json(await unless_gone(request, answer.whole()))
        await unless_gone(request, answer.begin())
    except BaseException:
        answer.cancel()
        raise
    return _Stream(answer)


async def resumable(request: Request, answer: Answer, conversation: str) -> Response:
    """Return a stream that goes on if the client leaves, and can be read again.

    It replaces the conversation's earlier stream.
    """
    services: Services = request.state.services
    try:
        given = getattr(request.state, "given", None)
        log = await begin_stream(services, answer, conversation, given and answer.recipe(given))
    except BaseException:
        answer.cancel()
        raise
    await unless_gone(request, log.begun())
    if answer.refusal is not None:
        await end_stream(services, answer.owner, conversation)
        raise answer.refusal
    if log.left and not log.has_events:
        raise BusyError("the server is shutting down", draining=True)
    return Relay(log.events(-1), pings=False)


class Relay(EventSourceResponse):
    """A stream of events with an independent writer. If the client leaves, the writer continues."""

    def __init__(
        self, chunks: AsyncIterator[bytes], keep_alive: tuple[str, str] | None = None, *, pings: bool = True
    ) -> None:
        super().__init__(
            chunks,
            headers={"Cache-Control": "no-cache"},
            ping=KEEP_ALIVE_S if pings else NEVER_S,
            ping_message_factory=keep_alive and partial(_event_of, *keep_alive),
            sep="\n",
            shutdown_grace_period=DRAIN_S,
        )

    async def _send_with_timeout(self, send: Send, message: Message) -> None:
        """Send without sse_starlette's timeout.

        The timeout would take a ninth of the event loop's time per token (benchmarks/RESULTS.md, section T).
        """
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
    """Load modules that streams need, in tens of milliseconds. Call it on the event loop at start-up."""
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
