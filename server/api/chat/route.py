"""POST /v1/chat/completions."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from server.api.chat.reply import Reply
from server.api.chat.schema import ChatRequest, contradiction, refused
from server.api.choices import submit
from server.api.delivery import deliver
from server.api.incoming import check_model, read_object, validated
from server.api.served import Served
from server.api.translate import generation_requests
from server.errors import InvalidRequestError


async def create(request: Request) -> Response:
    """Answer with a completion, or open a stream of chunks once the request is admitted."""
    served: Served = request.state.served
    body = await parse(request, served)
    # on another thread: a long prompt takes a while, and streams shall not stutter meanwhile
    asked = await asyncio.to_thread(generation_requests, served, body)
    reply = Reply(served, body, asked, submit(served, body, asked.requests, asked.form))
    return await deliver(request, reply, stream=body.stream)


async def parse(request: Request, served: Served) -> ChatRequest:
    """The body, validated. Raises InvalidRequestError and NotFoundError."""
    return checked(served, await read_object(request))


def checked(served: Served, data: dict[str, Any]) -> ChatRequest:
    """The same of a body that was read already."""
    body = validated(ChatRequest, data)
    if (name := refused(data)) is not None:
        raise InvalidRequestError(
            f"{name}: not supported by this server yet", param=name, code="unsupported_parameter"
        )
    if (found := contradiction(body)) is not None:
        param, why = found
        raise InvalidRequestError(f"{param}: {why}", param=param)
    check_model(served, body.model)
    return body
