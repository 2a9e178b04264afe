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
"""Responses by status for a page of a server without pages."""

OF_SERVER: dict[str, Operation] = {
    "GET /v1/props": Operation(
        id="getProps",
        summary="The model, and what requests get that do not say otherwise, as llama-server tells it.",
        answer="Properties of the server.",
        answers=("Props",),
        errors=READ,
    ),
    "GET /v1/models": Operation(
        id="listModels",
        summary=(
            "The model this server generates with, and those it embeds and ranks with, if they are others."
        ),
        description="The same with a slash at its end.",
        parameters=(
            {
                "name": "anthropic-version",
                "in": "header",
                "description": "With any value, the answer has Anthropic's form.",
                "schema": {"type": "string"},
            },
        ),
        answer="One, two or three of them.",
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
        summary="Whether the decode loop makes progress, how busy it is, and who drafts.",
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
        summary="The same as /health, as in llama-server.",
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
        summary="Whether requests are taken.",
        answer="They are.",
        answers=("Ready",),
        errors=OPEN,
        special={
            503: {
                "description": "Loading, draining before it ends, or stuck.",
                "headers": {
                    "Retry-After": {
                        "description": "Seconds after which to try again.",
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
        answer="In the order in which they were given.",
        answers=("Adapters",),
        errors=READ,
    ),
    "POST /lora-adapters": Operation(
        id="setAdapters",
        summary="Scales as they are; others are refused.",
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
        summary="The same engine for programs that speak JSON-RPC 2.0.",
        description=(
            "One call, or a batch of up to 32, which are carried out side by side and "
            "answered in their order. A client that closes the connection cancels its "
            "get_completion; async completions go on until they are polled to the end, "
            "cancelled, or not polled for two minutes. Notifications are not answered; those "
            "of methods that generate, and polls, do nothing, since nobody would read the "
            "result."
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
            "What became of it, errors of calls included. Codes besides those of the "
            "specification: -32000 the server is busy, -32001 the prompt does not fit the "
            "context, -32002 no such handle, -32003 the time limit."
        ),
        answers=("RpcReply", "RpcBatchReply"),
        errors=(*READ, 408, 413, 415, 429),
        special={204: {"description": "There were notifications only."}},
    ),
    "GET /slots": Operation(
        id="listSlots",
        summary="The places for conversations in the KV cache, and what runs in them. Counts only.",
        answer="All of them, in order of their ids.",
        answers=("Slots",),
        errors=(*READ, 501),
    ),
    "POST /slots/{id}": Operation(
        id="actOnSlot",
        summary="Save an idle slot to a file, restore it from one, or erase it.",
        description=(
            "Files lie in `slots/` below the server's `--cache-dir`, and nowhere else. A "
            "conversation that was asked for with a `cache_salt` is saved and restored with "
            "the same one only, and each salt (each API key has its own) has names of its "
            "own: nobody finds or replaces the files of another. Restoring gives what the "
            "slot held to the lower tiers of the cache; the next prompt that begins like the "
            "restored conversation continues it."
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
        body_description="For save and restore.",
        answer="Done.",
        answers=("SlotSaved", "SlotRestored", "SlotErased"),
        errors=(*READ, 408, 413, 415, 429),
        special={
            400: {
                "description": (
                    "No such action, no such file name, an empty slot to save or one of "
                    "another salt, or a file that is damaged or of another model."
                ),
                "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
            },
            404: {
                "description": "No such slot, or no such file of this salt.",
                "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
            },
            409: {
                "description": "The slot is busy, or what runs leaves no room. Try again later.",
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
        answer="The chat page; what it loads is below /web.",
        other={"text/html": {"schema": {"type": "string"}}},
        errors=(),
        special=NO_PAGE,
        public=True,
    ),
    "GET /status": Operation(
        id="getStatusPage",
        summary="The status page.",
        answer="A page with what the server does, live.",
        other={"text/html": {"schema": {"type": "string"}}},
        errors=(),
        special=NO_PAGE,
        public=True,
    ),
    "GET /lend": Operation(
        id="getLendingPage",
        summary="The page that drafts in the browser that opens it.",
        answer="The page; what it loads is below /lend/page, and it answers over a WebSocket, /lend/socket.",
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
                "description": "Bytes of the file, as RFC 9110 has it.",
                "schema": {"type": "string"},
            },
        ),
        answer="The file. Its ETag is its SHA-256.",
        other={"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
        errors=(*READ, 501),
        special={
            206: {
                "description": "Some of its bytes.",
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
        summary="Counters since the start and gauges of this moment, for Prometheus.",
        answer=(
            "A text format of Prometheus, or OpenMetrics if the request accepts it. Named as "
            "in llama-server where the meaning is the same."
        ),
        other={
            "text/plain": {"schema": {"type": "string"}},
            "application/openmetrics-text": {"schema": {"type": "string"}},
        },
        errors=(*READ, 501),
    ),
}
