"""Write errors in OpenAI's or Anthropic's shape: only this module turns a DuoError into HTTP."""

from __future__ import annotations

import logging
import re
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from server.api.delivery import Json
from server.engine.request_account import CURRENT
from server.errors import (
    AccessError,
    BusyError,
    ContextOverflowError,
    DuoError,
    InvalidRequestError,
    LostModelError,
    NotSupportedError,
    StoreError,
    TimeLimitError,
)

logger = logging.getLogger("duo.api")

ANTHROPIC_ROUTES = re.compile(r"(/v1)?/messages(/|$)")
ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
"""Error types by HTTP status. Other statuses have invalid_request_error, or api_error from 500 on."""


def body(error: DuoError) -> dict[str, Any]:
    """Return OpenAI's error object, always with all four keys."""
    told = {"message": error.message, "type": error.type, "param": error.param, "code": error.code}
    return {"error": told | error.more}


def anthropic_body(error: DuoError) -> dict[str, Any]:
    """Return Anthropic's error object. For a too long prompt, use the words that clients search for."""
    account = CURRENT.get()
    message = error.message
    if isinstance(error, ContextOverflowError):
        message = (
            f"prompt is too long: {error.more['n_prompt_tokens']} tokens > {error.more['n_ctx']} maximum"
        )
    kind = ANTHROPIC_TYPES.get(error.status, "api_error" if error.status >= 500 else "invalid_request_error")
    told = {"type": "error", "error": {"type": kind, "message": message}}
    return {**told, "request_id": account.id if account else None}


def respond(error: DuoError, path: str) -> Response:
    """Return a response in the format of the API that the path belongs to."""
    told = anthropic_body(error) if ANTHROPIC_ROUTES.match(path) else body(error)
    return Json(told, error.status, _retry_headers(error))


def _retry_headers(error: DuoError) -> dict[str, str]:
    match error:
        case BusyError() | LostModelError() | StoreError(status=503):
            return {"Retry-After": str(error.retry_after_s)}
        case AccessError():
            return {"WWW-Authenticate": "Bearer"}
        case TimeLimitError() | NotSupportedError():
            return {"x-should-retry": "false"}  # which OpenAI's clients heed
        case _:
            return {}


async def on_duo_error(request: Request, error: DuoError) -> Response:
    return respond(error, request.url.path)


async def on_disconnect(*_: object) -> Response:
    """Return a response that nobody reads, because the client has left."""
    return Response(status_code=499)


async def on_http_exception(request: Request, error: HTTPException) -> Response:
    """Answer unknown routes and wrong methods."""
    what = f"{error.detail}: {request.method} {request.url.path}"
    response = respond(InvalidRequestError(what, status=error.status_code), request.url.path)
    response.headers.update(error.headers or {})
    return response


def defect(what: str, error: Exception) -> DuoError:
    """Log that `what` failed, with the traceback of `error`; return an error without details for clients."""
    logger.error("%s failed", what, exc_info=error)
    return DuoError("the server failed: see its log")
