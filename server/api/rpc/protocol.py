"""JSON-RPC 2.0: reads calls, writes replies. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

import orjson

from server.errors import (
    BusyError,
    ContextOverflowError,
    DuoError,
    InvalidRequestError,
    TimeLimitError,
)

PARSE_ERROR, INVALID_REQUEST, UNKNOWN_METHOD, INVALID_PARAMS, INTERNAL_ERROR = (
    -32700,
    -32600,
    -32601,
    -32602,
    -32603,
)
BUSY, CONTEXT_OVERFLOW, UNKNOWN_HANDLE, TIME_LIMIT = -32000, -32001, -32002, -32003
"""Of the codes that the specification leaves to servers."""

MAX_CALLS = 32
"""In one batch."""

Id: TypeAlias = str | int | float | None


class UnknownHandleError(InvalidRequestError):
    """No async completion has this handle, or not any more: it has ended, or was not polled."""


class UnknownMethodError(InvalidRequestError):
    """There is no such method."""


@dataclass(frozen=True, slots=True)
class Call:
    """notified: no reply is wanted; id is None then."""

    id: Id
    notified: bool
    method: str
    params: dict[str, Any] | list[Any]


@dataclass(frozen=True, slots=True)
class NoCall:
    """Something that is no valid call. id: the call's, if it has one."""

    id: Id
    code: int
    message: str


def read(body: bytes) -> tuple[list[Call | NoCall], bool]:
    """The calls, and whether they came as a batch. An unreadable body is one NoCall."""
    try:
        data = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        return [NoCall(None, PARSE_ERROR, f"the body is not valid JSON: {error}")], False
    if not isinstance(data, list):
        return [_one(data)], False
    calls = cast(list[Any], data)
    if not calls:
        return [NoCall(None, INVALID_REQUEST, "the batch is empty")], False
    if len(calls) > MAX_CALLS:
        return [NoCall(None, INVALID_REQUEST, f"a batch may have {MAX_CALLS} calls, not {len(calls)}")], False
    return [_one(call) for call in calls], True


def _one(data: object) -> Call | NoCall:
    if not isinstance(data, dict):
        return NoCall(None, INVALID_REQUEST, "a call is a JSON object")
    call = cast(dict[str, Any], data)
    id = call.get("id")
    if isinstance(id, bool) or not isinstance(id, str | int | float | None):
        return NoCall(None, INVALID_REQUEST, "id: must be a string, a number or null")
    if call.get("jsonrpc") != "2.0":
        return NoCall(id, INVALID_REQUEST, 'jsonrpc: must be "2.0"')
    method, params = call.get("method"), call.get("params", {})
    if not isinstance(method, str):
        return NoCall(id, INVALID_REQUEST, "method: must be a string")
    if not isinstance(params, dict | list):
        return NoCall(id, INVALID_REQUEST, "params: must be an object or an array")
    return Call(id, "id" not in call, method, cast(dict[str, Any] | list[Any], params))


def by_name(params: dict[str, Any] | list[Any], names: Sequence[str]) -> dict[str, Any]:
    """The params of a call by name; names: of those given by position. Raises InvalidRequestError."""
    if isinstance(params, dict):
        return params
    if len(params) > len(names):
        known = f"only {', '.join(names)}" if names else "nothing"
        raise InvalidRequestError(f"params: {known} can be given by position")
    return dict(zip(names, params, strict=False))


def result(id: Id, value: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": id, "result": value}


def refusal(refused: NoCall) -> dict[str, Any]:
    return _failed(refused.id, {"code": refused.code, "message": refused.message})


def failure(id: Id, error: DuoError) -> dict[str, Any]:
    """data: the other fields of OpenAI's error object; for a busy server also retry_after, in seconds."""
    data: dict[str, Any] = {"type": error.type, "param": error.param, "code": error.code}
    if isinstance(error, BusyError):
        data["retry_after"] = error.retry_after_s
    return _failed(id, {"code": _code(error), "message": error.message, "data": data})


def _failed(id: Id, error: dict[str, Any]) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": id, "error": error}


def _code(error: DuoError) -> int:
    match error:
        case UnknownMethodError():
            return UNKNOWN_METHOD
        case UnknownHandleError():
            return UNKNOWN_HANDLE
        case ContextOverflowError():
            return CONTEXT_OVERFLOW
        case InvalidRequestError():
            return INVALID_PARAMS
        case BusyError():
            return BUSY
        case TimeLimitError():
            return TIME_LIMIT
        case _:
            return INTERNAL_ERROR
