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
    "description": "That of the request that stored it.",
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
    summary="The stream of a conversation from an offset on. llama-server's.",
    description=(
        "A streamed reply to a request with the header `x-conversation-id` goes on when its connection "
        "ends, and is read again by that name with the same API key. The next one takes its place."
    ),
    parameters=(
        CONVERSATION,
        SALT,
        {
            "name": "from",
            "in": "query",
            "description": "Bytes of the stream that are left out.",
            "schema": {"type": "integer", "minimum": 0, "default": 0},
        },
    ),
    answer="The bytes as they were sent, and those to come.",
    event={"anyOf": [{"$ref": f"#/components/schemas/{name}"} for name in CHUNKS]},
    errors=(*FIND, 400),
)
STOP_STREAM = Operation(
    id="stopStream",
    summary="Cancel the reply of a conversation, and forget its stream. llama-server's.",
    parameters=(CONVERSATION, SALT),
    answer="Done, or there was none.",
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
        summary="A response that was stored, as it is now.",
        parameters=(
            ID,
            SALT,
            {
                "name": "stream",
                "in": "query",
                "description": "Its events, of a response that was created with background.",
                "schema": {"type": "boolean"},
            },
            {
                "name": "starting_after",
                "in": "query",
                "description": "The sequence number of the event before the first one that is wanted.",
                "schema": {"type": "integer", "default": -1},
            },
        ),
        answer="The response; with `stream=true` its events, those of a running one as they come.",
        answers=("Response",),
        event="ResponseEvent",
        errors=(*FIND, 400),
    ),
    "POST /v1/responses/{id}/cancel": Operation(
        id="cancelResponse",
        summary="Cancel a background response; one that has ended stays as it is.",
        parameters=(ID, SALT),
        answer="The response.",
        answers=("Response",),
        errors=(*FIND, 400),
    ),
    "DELETE /v1/responses/{id}": Operation(
        id="deleteResponse",
        summary="Forget a response, cancelled if it runs. Those that continue it stay.",
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
        summary="The streams of conversations whose names are known. llama-server's.",
        body="LookupRequest",
        answer="Those that there are.",
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
