"""JSON-RPC 2.0: read calls from a body, and write replies. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

import orjson

from server.errors import (
    BusyError,
    ContextOverflowError,
    DuoError,
    FieldError,
    InvalidRequestError,
    TimeLimitError,
)

PARSE_ERROR, INVALID_REQUEST = -32700, -32600

MAX_CALLS = 32
"""Maximum calls of a batch."""

Id: TypeAlias = str | int | float | None
Given: TypeAlias = dict[str, Any] | list[Any]
"""The params of a call, given by name or by position."""


class UnknownHandleError(FieldError):
    """No async completion has this handle: it is invalid, has finished, or was not polled for too long."""


class UnknownMethodError(InvalidRequestError):
    """The method does not exist."""


_CODES: dict[type[DuoError], int] = {  # first match; servers may define -32000 to -32099
    UnknownMethodError: -32601,
    UnknownHandleError: -32002,
    ContextOverflowError: -32001,
    InvalidRequestError: -32602,
    BusyError: -32000,
    TimeLimitError: -32003,
    DuoError: -32603,
}


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a method."""

    id: Id  # None for notifications; other calls may have None too
    notified: bool  # True for a notification, which gets no reply
    method: str
    params: Given


Reply: TypeAlias = dict[str, Any]


def read(body: bytes) -> tuple[list[Call | Reply], bool]:
    """Return the calls of a body, and True if they are a batch.

    In place of an invalid call, the list has the error reply to it. A body that is not JSON, and a batch that
    is empty or too long, give a single error reply and False.
    """
    try:
        data = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        return [_error_reply(None, f"the body is not valid JSON: {error}", PARSE_ERROR)], False
    if not isinstance(data, list):
        return [_read_call(data)], False
    calls = cast(list[Any], data)
    if not calls:
        return [_error_reply(None, "the batch is empty")], False
    if len(calls) > MAX_CALLS:
        return [_error_reply(None, f"a batch may have {MAX_CALLS} calls, not {len(calls)}")], False
    return [_read_call(call) for call in calls], True


def _read_call(data: object) -> Call | Reply:
    if not isinstance(data, dict):
        return _error_reply(None, "a call is a JSON object")
    call = cast(dict[str, Any], data)
    id = call.get("id")
    if isinstance(id, bool) or not isinstance(id, str | int | float | None):
        return _error_reply(None, "id: must be a string, a number or null")
    if call.get("jsonrpc") != "2.0":
        return _error_reply(id, 'jsonrpc: must be "2.0"')
    method, params = call.get("method"), call.get("params", {})
    if not isinstance(method, str):
        return _error_reply(id, "method: must be a string")
    if not isinstance(params, dict | list):
        return _error_reply(id, "params: must be an object or an array")
    return Call(id, "id" not in call, method, cast(Given, params))


def by_name(params: Given, names: Sequence[str]) -> dict[str, Any]:
    """Return the params by name.

    Args:
        params: The params, by name or by position.
        names: Names of the params that may be given by position, in order.

    Raises:
        InvalidRequestError: More params are given by position than have names.
    """
    if isinstance(params, dict):
        return params
    if len(params) > len(names):
        known = f"only {', '.join(names)}" if names else "nothing"
        raise InvalidRequestError(f"params: {known} can be given by position")
    return dict(zip(names, params, strict=False))


def result(id: Id, value: Any) -> Reply:
    return {"jsonrpc": "2.0", "id": id, "result": value}


def failure(id: Id, error: DuoError) -> Reply:
    """Return the reply to a failed call. Its `data` has type, param, code and, if busy, retry_after in s."""
    data: dict[str, Any] = {"type": error.type, "param": error.param, "code": error.code}
    if isinstance(error, BusyError):
        data["retry_after"] = error.retry_after_s
    code = next(code for kind, code in _CODES.items() if isinstance(error, kind))
    return _error_reply(id, error.message, code, data=data)


def _error_reply(id: Id, message: str, code: int = INVALID_REQUEST, **more: Any) -> Reply:
    return {"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": message, **more}}
