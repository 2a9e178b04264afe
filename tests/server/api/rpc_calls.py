"""Calls of POST /rpc, their replies held to the contract."""

from __future__ import annotations

import json
from typing import Any

import httpx

from tests.contract.contract import validate
from tests.http_lead import Lead

PROMPT = "once upon a time"


def post(lead: Lead, body: Any) -> httpx.Response:
    content = body if isinstance(body, bytes | str) else json.dumps(body)
    return httpx.post(f"{lead.url}/rpc", content=content, timeout=30)


def call(lead: Lead, method: str, params: Any = None, id: Any = 1) -> dict[str, Any]:
    """Make one call and return its reply, checked against the contract."""
    request: dict[str, Any] = {"jsonrpc": "2.0", "id": id, "method": method}
    if params is not None:
        request["params"] = params
    response = post(lead, request)
    assert response.status_code == 200, response.text
    reply = response.json()
    validate("RpcReply", reply)
    assert (reply["jsonrpc"], reply["id"]) == ("2.0", id)
    return reply


def result(lead: Lead, method: str, params: Any = None) -> Any:
    validate("RpcRequest", {"jsonrpc": "2.0", "method": method, "params": {} if params is None else params})
    reply = call(lead, method, params)
    assert "error" not in reply, reply
    validate(f"RpcResult{method.title().replace('_', '')}", reply["result"])
    return reply["result"]


def error(lead: Lead, method: str, params: Any = None) -> dict[str, Any]:
    reply = call(lead, method, params)
    assert "result" not in reply
    return reply["error"]


def completion(lead: Lead, prompt: Any = PROMPT, **params: Any) -> dict[str, Any]:
    return result(lead, "get_completion", {"prompt": prompt, "n_predict": 40, "temperature": 0, **params})
