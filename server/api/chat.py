"""POST /v1/chat/completions."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import Any, TypeVar

import orjson
from pydantic import ValidationError
from sse_starlette import EventSourceResponse
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from server.api import problem
from server.api.choices import submit
from server.api.reply import Reply
from server.api.schema import ChatRequest, contradiction, refused
from server.api.served import Served
from server.api.translate import generation_requests
from server.errors import InvalidRequestError, NotFoundError

T = TypeVar("T")

KEEP_ALIVE_S = 15
DRAIN_S = 3600  # a running stream outlives the request to stop: uvicorn's grace time bounds it
STREAM_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
CLOSED = Response(status_code=499)  # nobody is there to read it


class ClientGone(Exception):  # noqa: N818 - not an error
    """The client has closed the connection."""


async def create(request: Request) -> Response:
    """Answer with a completion, or open a stream of chunks once the request is admitted."""
    served: Served = request.state.served
    body = await parse(request, served)
    # on another thread: a long prompt takes a while, and streams shall not stutter meanwhile
    asked = await asyncio.to_thread(generation_requests, served, body)
    reply = Reply(served, body, asked, submit(served, body, asked.requests))
    try:
        if not body.stream:
            return Response(await unless_gone(request, reply.whole()), media_type="application/json")
        await unless_gone(request, reply.begin())
    except ClientGone:
        reply.cancel()
        return CLOSED
    except BaseException:
        reply.cancel()
        raise
    return _Stream(reply)


class _Stream(EventSourceResponse):
    """The chunks of one reply. However it ends, even before its first chunk, so do its generations."""

    def __init__(self, reply: Reply) -> None:
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


async def parse(request: Request, served: Served) -> ChatRequest:
    """The body, validated. Raises InvalidRequestError and NotFoundError."""
    try:
        data = orjson.loads(await request.body())
    except orjson.JSONDecodeError as error:
        raise InvalidRequestError(f"the body is not valid JSON: {error}") from error
    if not isinstance(data, dict):
        raise InvalidRequestError("the body must be a JSON object")
    try:
        body = ChatRequest.model_validate(data)
    except ValidationError as error:
        raise problem.invalid(error, data) from error  # pyright: ignore[reportUnknownArgumentType]
    if (name := refused(data)) is not None:  # pyright: ignore[reportUnknownArgumentType]
        raise InvalidRequestError(
            f"{name}: not supported by this server yet", param=name, code="unsupported_parameter"
        )
    if (found := contradiction(body)) is not None:
        param, why = found
        raise InvalidRequestError(f"{param}: {why}", param=param)
    _check_model(served, body.model)
    return body


def _check_model(served: Served, model: str | None) -> None:
    if model and model not in (served.model.id, "default"):
        raise NotFoundError(
            f"The model `{model}` does not exist: this server has `{served.model.id}`",
            param="model",
            code="model_not_found",
        )


async def unless_gone(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The work's result. Raises ClientGone, the work cancelled, if the client goes away before."""
    task = asyncio.ensure_future(work)
    watch = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait((task, watch), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGone
        return task.result()
    finally:
        for one in (task, watch):
            one.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await one


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
