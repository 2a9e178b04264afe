"""Errors in OpenAI's shape: the one place where DuoErrors become HTTP."""

from __future__ import annotations

import logging
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from server.api.delivery import Json
from server.errors import (
    AccessError,
    BusyError,
    DuoError,
    InvalidRequestError,
    NotSupportedError,
    TimeLimitError,
)

logger = logging.getLogger("duo.api")


def body(error: DuoError) -> dict[str, Any]:
    """OpenAI's error object, always with all four keys."""
    told = {"message": error.message, "type": error.type, "param": error.param, "code": error.code}
    return {"error": told | error.more}


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
