"""Operations about stored responses and conversations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from server.api.contract.operation import FIND, TEXT_WORK, Operation

ID: Mapping[str, Any] = {"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}
ITEM: Mapping[str, Any] = {**ID, "name": "item_id"}
SALT: Mapping[str, Any] = {
    "name": "cache_salt",
    "in": "query",
    "description": "That of the request that stored it.",
    "schema": {"type": "string", "maxLength": 256},
}
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
OF_STORED: dict[str, Operation] = {
    "GET /v1/responses/{id}/input_items": Operation(
        id="listInputItems",
        summary="The conversation that led to a stored response, as a page of items.",
        parameters=(ID, SALT, *PAGE),
        answer="The page.",
        told=("InputItems",),
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
        told=("Response",),
        event="ResponseEvent",
        errors=(*FIND, 400),
    ),
    "POST /v1/responses/{id}/cancel": Operation(
        id="cancelResponse",
        summary="Cancel a background response; one that has ended stays as it is.",
        parameters=(ID, SALT),
        answer="The response.",
        told=("Response",),
        errors=(*FIND, 400),
    ),
    "DELETE /v1/responses/{id}": Operation(
        id="deleteResponse",
        summary="Forget a response, cancelled if it runs. Those that continue it stay.",
        parameters=(ID, SALT),
        answer="Done.",
        told=("ResponseDeleted",),
        errors=FIND,
    ),
    "POST /v1/conversations": Operation(
        id="createConversation",
        summary="A conversation: items that responses with `conversation` read and add to.",
        body="ConversationRequest",
        answer="The conversation.",
        told=("Conversation",),
        errors=TEXT_WORK,
    ),
    "GET /v1/conversations/{id}": Operation(
        id="getConversation",
        summary="A conversation, without its items.",
        parameters=(ID, SALT),
        answer="The conversation.",
        told=("Conversation",),
        errors=FIND,
    ),
    "POST /v1/conversations/{id}": Operation(
        id="updateConversation",
        summary="Replace the metadata of a conversation.",
        parameters=(ID,),
        body="MetadataRequest",
        answer="The conversation.",
        told=("Conversation",),
        errors=(*TEXT_WORK, 404),
    ),
    "DELETE /v1/conversations/{id}": Operation(
        id="deleteConversation",
        summary="Forget a conversation. The responses in it stay.",
        parameters=(ID, SALT),
        answer="Done.",
        told=("ConversationDeleted",),
        errors=FIND,
    ),
    "GET /v1/conversations/{id}/items": Operation(
        id="listConversationItems",
        summary="A page of a conversation's items.",
        parameters=(ID, SALT, *PAGE),
        answer="The page.",
        told=("InputItems",),
        errors=(*FIND, 400),
    ),
    "POST /v1/conversations/{id}/items": Operation(
        id="addConversationItems",
        summary="Add items to a conversation.",
        parameters=(ID,),
        body="ItemsRequest",
        answer="The items as they are stored.",
        told=("InputItems",),
        errors=(*TEXT_WORK, 404),
    ),
    "GET /v1/conversations/{id}/items/{item_id}": Operation(
        id="getConversationItem",
        summary="An item of a conversation.",
        parameters=(ID, ITEM, SALT),
        answer="The item.",
        told=("ListedItem",),
        errors=FIND,
    ),
    "DELETE /v1/conversations/{id}/items/{item_id}": Operation(
        id="deleteConversationItem",
        summary="Remove an item from a conversation.",
        parameters=(ID, ITEM, SALT),
        answer="The conversation.",
        told=("Conversation",),
        errors=FIND,
    ),
}
