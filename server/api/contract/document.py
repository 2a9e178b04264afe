"""Assemble openapi.yaml."""

from __future__ import annotations

import inspect
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from starlette.routing import Mount, Route

from server.api import app
from server.api.body import Body
from server.api.chat.chat_request import ChatRequest
from server.api.completions.completion_request import CompletionRequest
from server.api.contract import (
    completion_shapes,
    decision_shapes,
    figure_shapes,
    message_shapes,
    response_event_shapes,
    response_shapes,
    rpc_shapes,
    server_shapes,
    text_shapes,
)
from server.api.contract.describing import PLACE, SUFFIX, schemas_of
from server.api.contract.metric_names import as_extension
from server.api.contract.rpc_request import RPC_REQUEST
from server.api.contract.server_operations import OF_SERVER
from server.api.contract.stored_operations import OF_STORED
from server.api.contract.text_operations import OF_TEXTS
from server.api.decisions.decision_request import DecisionRequest
from server.api.decisions.systemone_route import StateRequest
from server.api.embeddings import EmbeddingRequest
from server.api.messages.messages_request import MessagesRequest
from server.api.native.infill import InfillRequest
from server.api.native.native_request import NativeRequest
from server.api.rerank import RerankRequest
from server.api.responses.compaction import CompactRequest
from server.api.responses.conversation_request import ConversationRequest, ItemsRequest, MetadataRequest
from server.api.responses.response_request import ResponseRequest
from server.api.resumed_route import LookupRequest
from server.api.rpc.rpc_params import CompletionParams, HandleParams, InitParams, TokenizeParams
from server.api.slots_route import FileBody
from server.api.tokens import DetokenizeRequest, TokenizeRequest

FORMS: dict[str, type[Body]] = {
    "ChatRequest": ChatRequest,
    "CompletionRequest": CompletionRequest,
    "NativeRequest": NativeRequest,
    "InfillRequest": InfillRequest,
    "ResponseRequest": ResponseRequest,
    "MessagesRequest": MessagesRequest,
    "CompactRequest": CompactRequest,
    "ConversationRequest": ConversationRequest,
    "MetadataRequest": MetadataRequest,
    "LookupRequest": LookupRequest,
    "ItemsRequest": ItemsRequest,
    "DecisionRequest": DecisionRequest,
    "StateRequest": StateRequest,
    "EmbeddingRequest": EmbeddingRequest,
    "RerankRequest": RerankRequest,
    "TokenizeRequest": TokenizeRequest,
    "DetokenizeRequest": DetokenizeRequest,
    "SlotFile": FileBody,
    "RpcInitParams": InitParams,
    "RpcTokenizeParams": TokenizeParams,
    "RpcHandleParams": HandleParams,
    "RpcCompletionParams": CompletionParams,
}
"""Bodies of requests, by the names of their schemas."""
SHAPES = (
    completion_shapes,
    decision_shapes,
    figure_shapes,
    message_shapes,
    response_event_shapes,
    response_shapes,
    rpc_shapes,
    server_shapes,
    text_shapes,
)
LIKE_CHAT = "ChatRequest"
"""The request with the most fields. Other requests refer to its schema for equal fields."""
ALONE = {("POST", "/completions"), ("GET", "/health")}
"""Routes listed both with and without /v1, because the two differ in format or in needing a key."""
DESCRIPTION = (
    "Bodies are read as uncompressed JSON, whatever their content type. An explicit null means an absent "
    "field, and unknown fields are ignored. Every route below `/v1` also exists without that prefix; "
    "`/completions` then has llama-server's own format. Errors have OpenAI's shape, those of `/v1/messages` "
    "Anthropic's. Every reply has the headers `x-request-id` and `openai-processing-ms`. An API key is "
    "required if the server was started with keys or listens beyond its machine, except for the page, this "
    "file, `/health`, `/v1/health` and `/ready`. If no key is required, web pages of other origins get a "
    "403, unless `--cors-origins` names them."
)
PROJECT = Path(__file__).parents[3] / "pyproject.toml"


def document() -> dict[str, Any]:
    """Return the contract: the requests and the answers of every route of the app.

    Raises:
        KeyError: A route has no operation, or an operation no route.
    """
    operations = OF_TEXTS | OF_STORED | OF_SERVER
    paths: dict[str, dict[str, Any]] = {}
    for method, path in listed_routes():
        operation = operations.pop(f"{method} {path}")
        paths.setdefault(path, {})[method.lower()] = operation.as_openapi(path)
    if operations:
        raise KeyError(f"no route of the app: {', '.join(operations)}")
    paths["/metrics"]["get"]["responses"]["200"]["content"]["text/plain"]["x-metrics"] = as_extension()
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "duo",
            "version": tomllib.loads(PROJECT.read_text())["project"]["version"],
            "summary": "OpenAI-compatible inference, sped up by drafters on other devices.",
            "description": DESCRIPTION,
            "license": {"name": "MIT", "identifier": "MIT"},
        },
        "servers": [{"url": "http://127.0.0.1:5555"}],
        "security": [{}, {"bearer": []}, {"apiKey": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "apiKey": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
            "responses": _error_responses(),
            "schemas": _all_schemas(),
        },
    }


def listed_routes() -> Iterator[tuple[str, str]]:
    """Yield method and path of each route, except routes that exist below /v1 too and do the same there."""
    below: set[tuple[str, str]] = set()
    for route in app.routes():
        prefix = "/v1" if isinstance(route, Mount) and route.path == "/v1" else ""
        for one in route.routes if prefix and isinstance(route, Mount) else [route]:
            if not isinstance(one, Route):
                continue
            path = one.path.replace(":path}", "}")
            for method in sorted((one.methods or set()) - {"HEAD"}):
                if prefix:
                    below.add((method, path))
                elif (method, path) in below and (method, path) not in ALONE:
                    continue
                yield method, prefix + path


def _all_schemas() -> dict[str, Any]:
    """Return all schemas by name, those of requests first."""
    shapes = {
        name.removesuffix(SUFFIX): kind
        for module in SHAPES
        for name, kind in vars(module).items()
        if getattr(kind, "__module__", None) == module.__name__ and not inspect.isfunction(kind)
    }
    found = schemas_of({**FORMS, **shapes})
    forms = {name: found.pop(name) for name in FORMS}
    chat = forms[LIKE_CHAT]["properties"]
    for name, schema in forms.items():
        for field, one in schema["properties"].items():
            if name != LIKE_CHAT and one == chat.get(field):
                schema["properties"][field] = {"$ref": f"{PLACE}{LIKE_CHAT}/properties/{field}"}
    return {**forms, "RpcRequest": RPC_REQUEST, **dict(sorted(found.items()))}


def _error_responses() -> dict[str, Any]:
    """Return the responses for errors by name, in OpenAI's shape and in Anthropic's (prefix Messages)."""
    key = {"WWW-Authenticate": {"description": "Bearer.", "schema": {"type": "string"}}}
    after = {"description": "Seconds to wait before trying again.", "schema": {"type": "integer"}}
    found: dict[str, Any] = {}
    for prefix, shape in (("", "Error"), ("Messages", "MessagesError")):
        content = {"application/json": {"schema": {"$ref": PLACE + shape}}}
        found[f"{prefix}Error"] = {"description": "Why not.", "content": content}
        found[f"{prefix}Unauthorized"] = {
            "description": "An API key is required, and the request has none that the server knows.",
            "headers": key,
            "content": content,
        }
        found[f"{prefix}Busy"] = {
            "description": "Too many requests are waiting (429), or the server loads its model, has lost it "
            "or is shutting down (503).",
            "headers": {"Retry-After": after},
            "content": content,
        }
    return found
