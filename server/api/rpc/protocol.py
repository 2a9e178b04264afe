"""JSON-RPC 2.0: calls out of a body, and replies into one. Pure."""

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

PARSE_ERROR, INVALID_REQUEST = -32700, -32600

MAX_CALLS = 32
"""In one batch."""

Id: TypeAlias = str | int | float | None
Given: TypeAlias = dict[str, Any] | list[Any]
"""The params of a call, by name or by position."""


class UnknownHandleError(InvalidRequestError):
    """No async completion has this handle: it never had, its end was told, or nobody asked for too long."""


class UnknownMethodError(InvalidRequestError):
    """There is no such method."""


_CODES: dict[type[DuoError], int] = {  # the first that fits; from -32000 down they are left to servers
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
    """notified: nobody is to be answered; id is None then, and may be None otherwise."""

    id: Id
    notified: bool
    method: str
    params: Given


@dataclass(frozen=True, slots=True)
class NoCall:
    """What stands in a call's place but is none. id: the call's, as far as it has one."""

    id: Id
    code: int
    message: str


def read(body: bytes) -> tuple[list[Call | NoCall], bool]:
    """What is called, and whether it came as a batch. What cannot be read at all is one refusal."""
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
    return Call(id, "id" not in call, method, cast(Given, params))


def by_name(params: Given, names: Sequence[str]) -> dict[str, Any]:
    """The params of a call; those given by position have these names. Raises InvalidRequestError."""
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
    """data has what OpenAI's error object says besides the message; of a busy server when to try again."""
    data: dict[str, Any] = {"type": error.type, "param": error.param, "code": error.code}
    if isinstance(error, BusyError):
        data["retry_after"] = error.retry_after_s
    code = next(code for kind, code in _CODES.items() if isinstance(error, kind))
    return _failed(id, {"code": code, "message": error.message, "data": data})


def _failed(id: Id, error: dict[str, Any]) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": id, "error": error}
