"""Create, read, change and delete OpenAI's conversations: stored items that responses read and add to."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from server.api.access import salt_of
from server.api.delivery import Json
from server.api.responses.conversation_request import ConversationRequest, ItemsRequest, MetadataRequest
from server.api.responses.response_events import new_id
from server.api.responses.response_items import Item, ReferenceItem, as_stored
from server.api.responses.stored_route import MOST_ITEMS, page_of
from server.api.services import Services
from server.api.stages.validate import read
from server.engine.request_account import tenant
from server.errors import FieldError, NotFoundError
from server.replies.kept import StoredResponse, with_items
from server.replies.store import Owner


async def create(request: Request, services: Services) -> Response:
    body = await read(request, ConversationRequest)
    about = {"id": new_id("conv"), "object": "conversation", "created_at": int(time.time())}
    made = StoredResponse({**about, "metadata": body.metadata}, (), _new_items(body.items))
    services.replies.put(Owner(body.salt, tenant()), made)
    await services.replies.flush()
    return Json(made.response)


async def retrieve(request: Request, services: Services) -> Response:
    return Json((await _named(request, services)).response)


async def update(request: Request, services: Services) -> Response:
    body = await read(request, MetadataRequest)
    changed = await _changed(
        request,
        services,
        body.salt,
        lambda one: replace(one, response={**one.response, "metadata": body.metadata}),
    )
    return Json(changed.response)


async def delete(request: Request, services: Services) -> Response:
    """Delete a conversation, but not the stored responses that have added to it."""
    conversation = await _named(request, services)
    await services.replies.delete(Owner(_salt_of_query(request), tenant()), conversation.id)
    return Json({"id": conversation.id, "object": "conversation.deleted", "deleted": True})


async def list_items(request: Request, services: Services) -> Response:
    conversation = await _named(request, services)
    return Json(page_of(conversation.input_items, request.query_params))


async def add_items(request: Request, services: Services) -> Response:
    body = await read(request, ItemsRequest)
    new = _new_items(body.items)
    await _changed(request, services, body.salt, lambda one: with_items(one, new))
    listed = {"object": "list", "data": new, "has_more": len(new) > MOST_ITEMS}
    return Json({**listed, "first_id": new[0]["id"], "last_id": new[-1]["id"]})


async def retrieve_item(request: Request, services: Services) -> Response:
    conversation, id = await _named(request, services), request.path_params["item_id"]
    found = next((item for item in conversation.input_items if item["id"] == id), None)
    if found is None:
        raise NotFoundError(f"Item with id '{id}' not found.", param="item_id")
    return Json(found)


async def delete_item(request: Request, services: Services) -> Response:
    """Delete an item of a conversation, and answer with the conversation."""
    id = request.path_params["item_id"]

    def without(conversation: StoredResponse) -> StoredResponse:
        kept = [item for item in conversation.input_items if item["id"] != id]
        if len(kept) == len(conversation.input_items):
            raise NotFoundError(f"Item with id '{id}' not found.", param="item_id")
        return replace(conversation, input_items=kept)

    return Json((await _changed(request, services, _salt_of_query(request), without)).response)


async def stored_conversation(services: Services, salt: str, id: str) -> StoredResponse:
    """Return the conversation with this id and salt. Raises NotFoundError."""
    stored = await services.replies.get(salt, id) if id.startswith("conv_") else None
    if stored is None:
        raise _no_conversation(id)
    return stored


def _no_conversation(id: str) -> NotFoundError:
    return NotFoundError(f"Conversation with id '{id}' not found.", param="conversation")


async def _named(request: Request, services: Services) -> StoredResponse:
    return await stored_conversation(services, _salt_of_query(request), request.path_params["id"])


async def _changed(
    request: Request, services: Services, salt: str, change: Callable[[StoredResponse], StoredResponse]
) -> StoredResponse:
    """Change the conversation that the request's path names; store and return the result.

    Raises:
        NotFoundError: There is no such conversation with this salt, or `change` raises this error.
    """
    id = request.path_params["id"]
    owner = Owner(salt, tenant())
    changed = await services.replies.change(owner, id, change) if id.startswith("conv_") else None
    if changed is None:
        raise _no_conversation(id)
    return changed


def _new_items(items: Sequence[Item]) -> list[dict[str, Any]]:
    """Return new items in their stored form. Raises FieldError for a reference to another item."""
    for i, item in enumerate(items):
        if isinstance(item, ReferenceItem):
            raise FieldError(f"items.{i}", "a reference cannot be added: give the item itself")
    return [as_stored(item, new_id) for item in items]


def _salt_of_query(request: Request) -> str:
    return salt_of(request, request.query_params.get("cache_salt"))
