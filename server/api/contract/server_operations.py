"""Operations that report the server's state, or change it."""

from __future__ import annotations

from typing import Any

from server.api.contract.operation import FIND, OPEN, READ, Operation

NO_PAGE: dict[int, Any] = {
    404: {
        "description": "The server was started with --no-ui.",
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
    }
}
"""Responses, by status, of page routes if the server has no pages."""

OF_SERVER: dict[str, Operation] = {
    "GET /v1/props": Operation(
        id="getProps",
        summary="The model and the defaults of requests, as in llama-server.",
        answer="Properties of the server.",
        answers=("Props",),
        errors=READ,
    ),
    "GET /v1/models": Operation(
        id="listModels",
        summary=(
            "The model with which this server generates, and separate models with which it embeds or ranks."
        ),
        description="The route also exists with a slash at its end.",
        parameters=(
            {
                "name": "anthropic-version",
                "in": "header",
                "description": "With any value, the answer has Anthropic's form.",
                "schema": {"type": "string"},
            },
        ),
        answer="One to three models.",
        answers=("ModelList", "AnthropicModelList"),
        errors=READ,
    ),
    "GET /v1/models/{id}": Operation(
        id="getModel",
        summary="One model.",
        parameters=(
            {"name": "id", "in": "path", "required": True, "schema": {"type": "string"}},
            {
                "name": "anthropic-version",
                "in": "header",
                "description": "With any value, the answer has Anthropic's form.",
                "schema": {"type": "string"},
            },
        ),
        answer="The model.",
        answers=("Model", "AnthropicModel"),
        errors=FIND,
    ),
    "GET /health": Operation(
        id="getHealth",
        summary="Whether the decode loop makes progress, how busy it is, and which drafters it has.",
        answer="Well.",
        answers=("Health",),
        errors=OPEN,
        special={
            503: {
                "description": "Loading, or stuck with work and no progress.",
                "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Health"}}},
            }
        },
        public=True,
    ),
    "GET /v1/health": Operation(
        id="getHealthV1",
        summary="Equal to /health, as in llama-server.",
        answer="Well.",
        answers=("Health",),
        errors=OPEN,
        special={
            503: {
                "description": "Loading, or stuck with work and no progress.",
                "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Health"}}},
            }
        },
        public=True,
    ),
    "GET /ready": Operation(
        id="getReady",
        summary="Whether the server accepts requests.",
        answer="They are.",
        answers=("Ready",),
        errors=OPEN,
        special={
            503: {
                "description": "Loading, draining before it ends, or stuck.",
                "headers": {
                    "Retry-After": {
                        "description": "Seconds to wait before trying again.",
                        "schema": {"type": "integer"},
                    }
                },
                "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Ready"}}},
            }
        },
        public=True,
    ),
    "GET /lora-adapters": Operation(
        id="getAdapters",
        summary="The LoRA adapters that the model was loaded with, and their scales.",
        answer="The adapters, in the order of the flags.",
        answers=("Adapters",),
        errors=READ,
    ),
    "POST /lora-adapters": Operation(
        id="setAdapters",
        summary="Accept the present scales; refuse any others.",
        body={
            "type": "array",
            "items": {
                "type": "object",
                "required": ["id", "scale"],
                "properties": {
                    "id": {"type": "integer", "minimum": 0, "maximum": 2147483648},
                    "scale": {"type": "number"},
                },
            },
        },
        answer="They are.",
        answers={
            "type": "object",
            "additionalProperties": False,
            "required": ["success"],
            "properties": {"success": {"const": True}},
        },
    ),
    "POST /rpc": Operation(
        id="rpc",
        summary="A JSON-RPC 2.0 facade of the engine.",
        description=(
            "One call, or a batch of up to 32 calls, which run concurrently and are answered "
            "in their order. A client that closes the connection cancels its get_completion; "
            "async completions continue until they are polled to the end, cancelled, or not "
            "polled for two minutes. Notifications are not answered. Notifications of polls "
            "and of methods that generate do nothing, because nobody would read the result."
        ),
        body={
            "oneOf": [
                {"$ref": "#/components/schemas/RpcRequest"},
                {
                    "type": "array",
                    "minItems": 1,
                    "maxItems": 32,
                    "items": {"$ref": "#/components/schemas/RpcRequest"},
                },
            ]
        },
        answer=(
            "The results or errors of the calls. Codes besides those of the specification: "
            "-32000 the server is busy, -32001 the prompt does not fit the context, -32002 no "
            "such handle, -32003 the time limit."
        ),
        answers=("RpcReply", "RpcBatchReply"),
        errors=(*READ, 408, 413, 415, 429),
        special={204: {"description": "All calls were notifications."}},
    ),
    "GET /slots": Operation(
        id="listSlots",
        summary="The slots, with counts and settings of their replies, but without texts.",
        answer="All slots, in the order of their ids.",
        answers=("Slots",),
        errors=(*READ, 501),
    ),
    "POST /slots/{id}": Operation(
        id="actOnSlot",
        summary="Save an idle slot to a file, restore it from a file, or erase it.",
        description=(
            "Files are in `slots/` below the server's `--cache-dir`. A conversation of requests "
            "with a `cache_salt` can be saved and restored with an equal salt only. Each salt "
            "(and each API key) has separate file names: nobody finds or replaces another "
            "caller's files. Restoring moves the slot's former contents to the lower tiers of the "
            "cache. The next prompt that begins like the restored conversation continues it."
        ),
        parameters=(
            {"name": "id", "in": "path", "required": True, "schema": {"type": "integer", "minimum": 0}},
            {
                "name": "action",
                "in": "query",
                "required": True,
                "schema": {"enum": ["save", "restore", "erase"]},
            },
        ),
        body="SlotFile",
        body_description="Required for save and restore.",
        answer="Done.",
        answers=("SlotSaved", "SlotRestored", "SlotErased"),
        errors=(*READ, 408, 413, 415, 429),
        special={
            400: {
                "description": (
                    "The action or file name is invalid, the slot to save is empty or has another "
                    "salt, or the file is damaged or belongs to another model."
                ),
                "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
            },
            404: {
                "description": "There is no such slot, or no such file with this salt.",
                "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
            },
            409: {
                "description": "The slot is busy, or running replies leave no room. Try again later.",
                "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
            },
            501: {
                "description": "The server was started without `--cache-dir`, which save and restore need.",
                "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
            },
            507: {
                "description": "All files of slots together would take more than `--cache-disk`.",
                "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
            },
        },
    ),
    "GET /openapi.yaml": Operation(
        id="getContract",
        summary="This file.",
        answer="This file.",
        other={"application/yaml": {"schema": {"type": "object"}}},
        errors=(),
        public=True,
    ),
    "GET /": Operation(
        id="getPage",
        summary="The chat page.",
        answer="The chat page; its files are below /web.",
        other={"text/html": {"schema": {"type": "string"}}},
        errors=(),
        special=NO_PAGE,
        public=True,
    ),
    "GET /status": Operation(
        id="getStatusPage",
        summary="The status page.",
        answer="A page that shows live what the server does.",
        other={"text/html": {"schema": {"type": "string"}}},
        errors=(),
        special=NO_PAGE,
        public=True,
    ),
    "GET /lend": Operation(
        id="getLendingPage",
        summary="The page that drafts in the user's browser.",
        answer="The page; its files are below /lend/page. It sends guesses over the WebSocket /lend/socket.",
        other={"text/html": {"schema": {"type": "string"}}},
        errors=(),
        special=NO_PAGE,
        public=True,
    ),
    "GET /lend/model": Operation(
        id="getLentModel",
        summary="The draft model's file, for the page that drafts.",
        parameters=(
            {
                "name": "range",
                "in": "header",
                "description": "A range of bytes of the file, as in RFC 9110.",
                "schema": {"type": "string"},
            },
        ),
        answer="The file. Its ETag is its SHA-256.",
        other={"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
        errors=(*READ, 501),
        special={
            206: {
                "description": "The requested bytes.",
                "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
            },
            400: {
                "description": "The range is malformed.",
                "content": {"text/plain": {"schema": {"type": "string"}}},
            },
            416: {
                "description": "The file is shorter.",
                "content": {"text/plain": {"schema": {"type": "string"}}},
            },
        },
    ),
    "GET /lend/link": Operation(
        id="getLendingLink",
        summary="The link by which another device opens the page that drafts, and its QR code.",
        parameters=(
            {
                "name": "origin",
                "in": "query",
                "required": True,
                "description": "The server's URL where it is asked, as a browser's location.origin. If only "
                "that machine reaches it there, the link has the server's address in its network instead.",
                "schema": {"type": "string"},
            },
            {
                "name": "key",
                "in": "query",
                "description": "true: the link contains the API key of this request, behind #.",
                "schema": {"type": "string"},
            },
        ),
        answer="The link.",
        answers={
            "type": "object",
            "properties": {
                "url": {"type": "string"},
                "code": {"type": "string", "description": "Its QR code: the data: URL of an SVG picture."},
            },
            "required": ["url", "code"],
            "additionalProperties": False,
        },
        errors=(*READ, 400, 501),
    ),
    "GET /metrics": Operation(
        id="getMetrics",
        summary="Counters since the start, and current gauges, for Prometheus.",
        answer=(
            "Prometheus' text format, or OpenMetrics if the request accepts it. Metrics that "
            "llama-server also has have its names."
        ),
        other={
            "text/plain": {"schema": {"type": "string"}},
            "application/openmetrics-text": {"schema": {"type": "string"}},
        },
        errors=(*READ, 501),
    ),
}
