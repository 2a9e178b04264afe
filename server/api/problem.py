"""Errors as OpenAI's clients expect them. The one place where duo's errors become HTTP."""

from __future__ import annotations

import logging
from typing import Any

import orjson
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from server.errors import BusyError, DuoError, InvalidRequestError

logger = logging.getLogger("duo.api")


def body(error: DuoError) -> dict[str, Any]:
    """OpenAI's error object; all four keys are always there."""
    return {"error": {"message": error.message, "type": error.type, "param": error.param, "code": error.code}}


def respond(error: DuoError) -> Response:
    headers = {"Retry-After": str(error.retry_after_s)} if isinstance(error, BusyError) else None
    return Response(orjson.dumps(body(error)), error.status, headers, "application/json")


def invalid(error: ValidationError) -> InvalidRequestError:
    """The first complaint of a request's validation, naming the field."""
    first = error.errors()[0]
    places = [str(part) for part in first["loc"] if not str(part)[:1].isupper()]
    param = ".".join(places) or None
    message = first["msg"].removeprefix("Value error, ")
    return InvalidRequestError(f"{param}: {message}" if param else message, param=param)


async def on_duo_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, DuoError)
    return respond(error)


async def on_http_exception(request: Request, error: Exception) -> Response:
    """Unknown routes and wrong methods."""
    assert isinstance(error, HTTPException)
    problem = InvalidRequestError(f"{error.detail}: {request.method} {request.url.path}")
    response = respond(problem)
    response.status_code = error.status_code
    response.headers.update(error.headers or {})
    return response


async def on_defect(request: Request, error: Exception) -> Response:
    """A bug of ours: logged whole, told without detail."""
    logger.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return respond(DuoError("the server failed: see its log"))
