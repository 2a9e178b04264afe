"""Make the schema of a JSON-RPC call, whose params depend on its method."""

from __future__ import annotations

from typing import Any

from server.api.contract.describing import PLACE
from server.api.rpc.rpc_route import METHODS

PARAMS = {
    "init": "RpcInitParams",
    "tokenize": "RpcTokenizeParams",
    "get_completion": "RpcCompletionParams",
    "async_completion_init": "RpcCompletionParams",
    "async_completion_poll": "RpcHandleParams",
    "async_completion_cancel": "RpcHandleParams",
}
"""For each method, the name of the schema of params that are given by name."""


def _when_method(method: str, params: str) -> dict[str, Any]:
    named = {"method": {"const": method}, "params": {"type": "object"}}
    then = {"properties": {"params": {"$ref": PLACE + params}}}
    return {"if": {"properties": named, "required": ["method", "params"]}, "then": then}


RPC_REQUEST: dict[str, Any] = {
    "type": "object",
    "required": ["jsonrpc", "method"],
    "properties": {
        "jsonrpc": {"const": "2.0"},
        "id": {
            "type": ["string", "number", "null"],
            "description": "A call without an id is a notification.",
        },
        "method": {"enum": list(METHODS)},
        "params": {
            "type": ["object", "array"],
            "description": "By name; or by position: a text (tokenize), a handle, or a prompt and n_predict.",
        },
    },
    "allOf": [_when_method(method, params) for method, params in PARAMS.items()],
}
