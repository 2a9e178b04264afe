"""Serve /v1/stream and /v1/streams/lookup, llama-server's routes for reading a stream again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated, Any

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from server.api import problem
from server.api.access import salt_of
from server.api.answer import sse
from server.api.body import Body
from server.api.delivery import Json, Relay
from server.api.generation_fields import MAX_SALT
from server.api.resumed import NamedStream, end_stream, stream_of, streams_of
from server.api.services import Services
from server.api.stages.validate import read
from server.engine.request_account import tenant
from server.errors import DuoError, FieldError, NotFoundError
from server.replies.reply_log import LogReader, ReplyLog, bytes_from
from server.replies.store import Owner

MOST_NAMES = 4096
"""Maximum conversations of one lookup: a page asks for all its conversations."""


class LookupRequest(Body):
    """Body of POST /v1/streams/lookup."""

    conversation_ids: Annotated[list[str], Field(max_length=MOST_NAMES, fail_fast=True)] = Field(
        default_factory=list[str]
    )
    """Names of conversations. A name without "::MODEL" also finds its streams with any model."""
    cache_salt: Annotated[str, Field(max_length=MAX_SALT)] | None = None


async def read_again(request: Request, services: Services) -> Response:
    """Answer with the bytes of a conversation's stream from an offset on, until the stream ends."""
    name, salt = _name_of(request), _salt_of_query(request)
    start = request.query_params.get("from") or "0"
    if not (start.isascii() and start.isdigit() and len(start) <= 18):
        raise FieldError("from", "must be a number of bytes")
    stream = await stream_of(services, salt, name)
    log = await services.replies.log(salt, stream.id) if stream else None
    if log is None:
        raise NotFoundError("there is no stream of this conversation, or no longer", param="conv_id")
    return Relay(_bytes_or_error(log, int(start)), pings=False)


async def _bytes_or_error(log: LogReader, start: int) -> AsyncIterator[bytes]:
    """Yield a log's bytes from `start` on, and an error event at the end if its writer or store is gone."""
    try:
        async for chunk in bytes_from(log, start):
            yield chunk
    except DuoError as error:
        yield sse(problem.body(error))


async def remove(request: Request, services: Services) -> Response:
    """Cancel the reply of a conversation, and forget its stream."""
    await end_stream(services, Owner(_salt_of_query(request), tenant()), _name_of(request))
    return Response(status_code=204)


async def look_up(request: Request, services: Services) -> Response:
    """Answer with the streams of the named conversations."""
    body = await read(request, LookupRequest)
    salt, names = body.cache_salt or "", list(dict.fromkeys(body.conversation_ids))
    found = await asyncio.gather(*(streams_of(services, salt, name) for name in names))
    return Json([await _as_json(services, salt, stream) for streams in found for stream in streams])


async def _as_json(services: Services, salt: str, stream: NamedStream) -> dict[str, Any]:
    log = None if stream.completed_at else await services.replies.log(salt, stream.id)
    return {
        "conversation_id": stream.conversation,
        "is_done": bool(stream.completed_at) or not await services.replies.is_written(salt, stream.id),
        "total_bytes": log.n_bytes if isinstance(log, ReplyLog) else stream.n_bytes,
        "started_at": stream.started_at,
        "completed_at": stream.completed_at,
    }


def _name_of(request: Request) -> str:
    """Return the conversation's name, from the path (earlier pages of llama-server) or from the query."""
    if not (name := request.path_params.get("conv_id") or request.query_params.get("conv_id")):
        raise FieldError("conv_id", "required")
    return name


def _salt_of_query(request: Request) -> str:
    given = request.query_params.get("cache_salt", "")
    if len(given) > MAX_SALT:
        raise FieldError("cache_salt", f"must have at most {MAX_SALT} characters")
    return salt_of(request, given)
