"""Operations about stored responses and conversations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from server.api.contract.operation import FIND, READ, TEXT_WORK, Operation

ID: Mapping[str, Any] = {"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}
ITEM: Mapping[str, Any] = {**ID, "name": "item_id"}
SALT: Mapping[str, Any] = {
    "name": "cache_salt",
    "in": "query",
    "description": "The cache_salt of the request that stored it.",
    "schema": {"type": "string", "maxLength": 256},
}
CONVERSATION: Mapping[str, Any] = {**ID, "name": "conv_id", "in": "query"}
IN_PATH: Mapping[str, Any] = {**ID, "name": "conv_id"}
CHUNKS = ("ChatCompletionChunk", "CompletionChunk", "NativeChunk", "MessagesEvent")
PAGE: tuple[Mapping[str, Any], ...] = (
    {
        "name": "limit",
        "in": "query",
        "schema": {"type": "integer", "minimum": 1, "maximum": 100, "default": 20},
    },
    {
        "name": "order",
        "in": "query",
        "description": "desc begins with the last item.",
        "schema": {"enum": ["asc", "desc"], "default": "desc"},
    },
    {
        "name": "after",
        "in": "query",
        "description": "The id of the item before the page.",
        "schema": {"type": "string"},
    },
)
READ_STREAM = Operation(
    id="readStream",
    summary="The stream of a conversation from an offset on (llama-server's route).",
    description=(
        "A streamed reply to a request with the header `x-conversation-id` continues when its connection "
        "ends, and can be read again by that name with an equal API key. The next reply replaces it."
    ),
    parameters=(
        CONVERSATION,
        SALT,
        {
            "name": "from",
            "in": "query",
            "description": "Number of bytes of the stream to skip.",
            "schema": {"type": "integer", "minimum": 0, "default": 0},
        },
    ),
    answer="The bytes that were sent, then later bytes as they come.",
    event={"anyOf": [{"$ref": f"#/components/schemas/{name}"} for name in CHUNKS]},
    errors=(*FIND, 400),
)
STOP_STREAM = Operation(
    id="stopStream",
    summary="Cancel the reply of a conversation, and delete its stream (llama-server's route).",
    parameters=(CONVERSATION, SALT),
    answer="The stream is gone, or there was none.",
    status=204,
    errors=(*READ, 400),
)
OF_STORED: dict[str, Operation] = {
    "GET /v1/responses/{id}/input_items": Operation(
        id="listInputItems",
        summary="The conversation that led to a stored response, as a page of items.",
        parameters=(ID, SALT, *PAGE),
        answer="The page.",
        answers=("InputItems",),
        errors=(*FIND, 400),
    ),
    "GET /v1/responses/{id}": Operation(
        id="getResponse",
        summary="A stored response in its present state.",
        parameters=(
            ID,
            SALT,
            {
                "name": "stream",
                "in": "query",
                "description": "true: the events of the response; it must be a background response.",
                "schema": {"type": "boolean"},
            },
            {
                "name": "starting_after",
                "in": "query",
                "description": "The sequence number after which events begin.",
                "schema": {"type": "integer", "default": -1},
            },
        ),
        answer="The response; with `stream=true` its events, including later ones while it runs.",
        answers=("Response",),
        event="ResponseEvent",
        errors=(*FIND, 400),
    ),
    "POST /v1/responses/{id}/cancel": Operation(
        id="cancelResponse",
        summary="Cancel a background response. A response that has ended does not change.",
        parameters=(ID, SALT),
        answer="The response.",
        answers=("Response",),
        errors=(*FIND, 400),
    ),
    "DELETE /v1/responses/{id}": Operation(
        id="deleteResponse",
        summary="Delete a response, after cancelling it if it runs. Responses that continue it stay.",
        parameters=(ID, SALT),
        answer="Done.",
        answers=("ResponseDeleted",),
        errors=FIND,
    ),
    "GET /v1/stream": READ_STREAM,
    "GET /v1/stream/{conv_id}": replace(
        READ_STREAM, id="readStreamByPath", parameters=(IN_PATH, *READ_STREAM.parameters[1:])
    ),
    "DELETE /v1/stream": STOP_STREAM,
    "DELETE /v1/stream/{conv_id}": replace(STOP_STREAM, id="stopStreamByPath", parameters=(IN_PATH, SALT)),
    "POST /v1/streams/lookup": Operation(
        id="lookUpStreams",
        summary="The streams of conversations with known names (llama-server's route).",
        body="LookupRequest",
        answer="The streams that exist.",
        answers={"type": "array", "items": {"$ref": "#/components/schemas/FoundStream"}},
        errors=TEXT_WORK,
    ),
    "POST /v1/conversations": Operation(
        id="createConversation",
        summary="A conversation: items that responses with `conversation` read and add to.",
        body="ConversationRequest",
        answer="The conversation.",
        answers=("Conversation",),
        errors=TEXT_WORK,
    ),
    "GET /v1/conversations/{id}": Operation(
        id="getConversation",
        summary="A conversation, without its items.",
        parameters=(ID, SALT),
        answer="The conversation.",
        answers=("Conversation",),
        errors=FIND,
    ),
    "POST /v1/conversations/{id}": Operation(
        id="updateConversation",
        summary="Replace the metadata of a conversation.",
        parameters=(ID,),
        body="MetadataRequest",
        answer="The conversation.",
        answers=("Conversation",),
        errors=(*TEXT_WORK, 404),
    ),
    "DELETE /v1/conversations/{id}": Operation(
        id="deleteConversation",
        summary="Forget a conversation. The responses in it stay.",
        parameters=(ID, SALT),
        answer="Done.",
        answers=("ConversationDeleted",),
        errors=FIND,
    ),
    "GET /v1/conversations/{id}/items": Operation(
        id="listConversationItems",
        summary="A page of a conversation's items.",
        parameters=(ID, SALT, *PAGE),
        answer="The page.",
        answers=("InputItems",),
        errors=(*FIND, 400),
    ),
    "POST /v1/conversations/{id}/items": Operation(
        id="addConversationItems",
        summary="Add items to a conversation.",
        parameters=(ID,),
        body="ItemsRequest",
        answer="The items as they are stored.",
        answers=("InputItems",),
        errors=(*TEXT_WORK, 404),
    ),
    "GET /v1/conversations/{id}/items/{item_id}": Operation(
        id="getConversationItem",
        summary="An item of a conversation.",
        parameters=(ID, ITEM, SALT),
        answer="The item.",
        answers=("ListedItem",),
        errors=FIND,
    ),
    "DELETE /v1/conversations/{id}/items/{item_id}": Operation(
        id="deleteConversationItem",
        summary="Remove an item from a conversation.",
        parameters=(ID, ITEM, SALT),
        answer="The conversation.",
        answers=("Conversation",),
        errors=FIND,
    ),
}
