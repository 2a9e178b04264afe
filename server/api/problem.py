"""Errors in OpenAI's shape: the one place where DuoErrors become HTTP."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, cast

from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from server.api.delivery import Json
from server.errors import (
    AccessError,
    BusyError,
    DuoError,
    FieldError,
    InvalidRequestError,
    NotSupportedError,
    TimeLimitError,
)

logger = logging.getLogger("duo.api")


def body(error: DuoError) -> dict[str, Any]:
    """OpenAI's error object, always with all four keys."""
    return {"error": {"message": error.message, "type": error.type, "param": error.param, "code": error.code}}


def respond(error: DuoError) -> Response:
    return Json(body(error), error.status, _headers(error))


def _headers(error: DuoError) -> dict[str, str]:
    match error:
        case BusyError():
            return {"Retry-After": str(error.retry_after_s)}
        case AccessError():
            return {"WWW-Authenticate": "Bearer"}
        case TimeLimitError() | NotSupportedError():
            return {"x-should-retry": "false"}  # which OpenAI's clients heed
        case _:
            return {}


def invalid(error: ValidationError, data: object) -> InvalidRequestError:
    """The first validation error, with its field. If a field has several forms, the deepest error is
    reported: it is about the form that was meant."""
    complaints = error.errors(include_url=False, include_context=False, include_input=False)
    field = complaints[0]["loc"][:1]
    worst = max((c for c in complaints if c["loc"][:1] == field), key=lambda c: len(c["loc"]))
    param = ".".join(_path(worst["loc"], data)) or None
    message = worst["msg"].removeprefix("Value error, ")
    return FieldError(param, message) if param else InvalidRequestError(message)


def _path(places: Sequence[str | int], data: object) -> list[str]:
    """The path into the data, with a missing field at its end; without pydantic's names of forms."""
    path: list[str] = []
    for i, place in enumerate(places):
        if isinstance(data, dict) and place in data:
            data = cast(dict[Any, object], data)[place]
        elif isinstance(data, list) and isinstance(place, int):
            data = cast(list[object], data)[place]
        elif i < len(places) - 1 or not isinstance(data, dict):
            continue
        path.append(str(place))
    return path


async def on_duo_error(_: Request, error: DuoError) -> Response:
    return respond(error)


async def on_disconnect(*_: object) -> Response:
    """Nobody reads it: the client left while it sent its body, or later."""
    return Response(status_code=499)


async def on_http_exception(request: Request, error: HTTPException) -> Response:
    """Answers unknown routes and wrong methods."""
    what = f"{error.detail}: {request.method} {request.url.path}"
    response = respond(InvalidRequestError(what, status=error.status_code))
    response.headers.update(error.headers or {})
    return response


def defect(what: str, error: Exception) -> DuoError:
    """Logs an unexpected exception with its traceback; the error for the client has no details."""
    logger.error("%s failed", what, exc_info=error)
    return DuoError("the server failed: see its log")
