"""POST /v1/responses, OpenAI's Responses API, over chat completions; GET and DELETE of stored responses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from server.api.access import salt_of
from server.api.chat.chat_route import counted, n_tokens
from server.api.chat.summary import with_wish
from server.api.delivery import Json, deliver, unless_gone
from server.api.renaming import renamed
from server.api.response_store import StoredResponse
from server.api.responses.compaction import Compaction, CompactRequest
from server.api.responses.request_as_chat import as_chat
from server.api.responses.response_answer import ResponseAnswer, ResponseTurn
from server.api.responses.response_events import new_id
from server.api.responses.response_items import ANY_ITEM, Item, ReferenceItem, as_stored
from server.api.responses.response_request import ResponseRequest
from server.api.served import Served
from server.api.stages.prepare import prepared_chat
from server.api.stages.validate import aside, checked, read
from server.errors import FieldError, NotFoundError

MOST_ITEMS = 100
"""Items of one page, as OpenAI."""


async def create(request: Request, served: Served) -> Response:
    """Answer a request with a response, whole or as a stream."""
    body = await read(request, ResponseRequest)
    turn = _turn_of(served, body)
    with renamed(turn.chat.names):
        if body.context_management:
            turn = await _shortened_turn(request, served, body, turn)
        chat = checked(served, turn.chat.chat)
        asked = await aside(request, prepared_chat, served, chat)
        answer = ResponseAnswer(served, chat, asked, body, turn)
    return await deliver(request, answer, stream=body.stream)


async def compact(request: Request, served: Served) -> Response:
    """Answer with a shorter conversation: what the user said, and a summary of the rest."""
    body = await read(request, CompactRequest)
    turn = _turn_of(served, body)
    said = [item for item in turn.input_items if item.get("type") == "message" and item.get("role") == "user"]
    with renamed(turn.chat.names):
        answer = await _compact_turn(request, served, turn, said)
    return await deliver(request, answer, stream=False)


async def _shortened_turn(
    request: Request, served: Served, body: ResponseRequest, turn: ResponseTurn
) -> ResponseTurn:
    """Return the turn with a summary of its conversation, if its prompt is longer than the request wants."""
    most = body.context_management[0].compact_threshold or served.model.n_ctx * 9 // 10
    if await aside(request, n_tokens, served, checked(served, turn.chat.chat)) <= most:
        return turn
    answer = await _compact_turn(request, served, turn)
    try:
        await unless_gone(request, answer.whole())
        item = answer.item
    except BaseException:
        answer.cancel()
        raise
    items = [*(_resolved_item(served, body.salt, one, i) for i, one in enumerate(body.items))]
    items.append(ANY_ITEM.validate_python(item))
    before = _previous_response(served, body)
    chat = as_chat(body, before.messages if before else (), items)
    return replace(turn, chat=chat, compacted=item)


async def _compact_turn(
    request: Request, served: Served, turn: ResponseTurn, said: Sequence[dict[str, Any]] = ()
) -> Compaction:
    chat = checked(served, with_wish(turn.chat.chat))
    return Compaction(served, chat, await aside(request, prepared_chat, served, chat), said)


async def count(request: Request, served: Served) -> Response:
    """Answer with the number of tokens in the prompt of a request with this body."""
    body = await read(request, ResponseRequest)
    turn = _turn_of(served, body)
    with renamed(turn.chat.names):
        chat = checked(served, turn.chat.chat, fits=False)
        return counted(await aside(request, n_tokens, served, chat))


async def input_items(request: Request, served: Served) -> Response:
    """Answer with the conversation that led to a stored response, as a page of items."""
    stored = _stored_response(request, served)
    query = request.query_params
    limit = query.get("limit", "20")
    if not (limit.isascii() and limit.isdigit() and 1 <= int(limit) <= MOST_ITEMS):
        raise FieldError("limit", f"must be an integer from 1 to {MOST_ITEMS}")
    if (order := query.get("order", "desc")) not in ("asc", "desc"):
        raise FieldError("order", "must be asc or desc")
    items = list(stored.input_items if order == "asc" else reversed(stored.input_items))
    if (after := query.get("after")) is not None:
        places = [i for i, item in enumerate(items) if item["id"] == after]
        if not places:
            raise FieldError("after", f"there is no item with the id {after!r}")
        items = items[places[0] + 1 :]
    page = items[: int(limit)]
    first, last = (page[0]["id"], page[-1]["id"]) if page else (None, None)
    listed = {"object": "list", "data": page, "first_id": first, "last_id": last}
    return Json({**listed, "has_more": len(items) > len(page)})


async def retrieve(request: Request, served: Served) -> Response:
    if request.query_params.get("stream", "false").lower() not in ("false", "0"):
        raise FieldError("stream", "a response that has ended is told whole")
    return Json(_stored_response(request, served).response)


async def delete(request: Request, served: Served) -> Response:
    """Delete a stored response; those that continue it stay."""
    id = _stored_response(request, served).response["id"]
    served.responses.delete(_salt_of_request(request), id)
    return Json({"id": id, "object": "response", "deleted": True})


def _turn_of(served: Served, body: ResponseRequest) -> ResponseTurn:
    """Return the request as a turn of its conversation.

    Raises:
        NotFoundError: there is no such previous response, or no item with an id that is referred to.
        FieldError: an item or a tool cannot be served.
    """
    before = _previous_response(served, body)
    items = [_resolved_item(served, body.salt, item, i) for i, item in enumerate(body.items)]
    chat = as_chat(body, before.messages if before else (), items)
    return ResponseTurn(
        chat, [*(before.items if before else ()), *(as_stored(item, new_id) for item in items)]
    )


def _resolved_item(served: Served, salt: str, item: Item, i: int) -> Item:
    """Return the item that a reference stands for, or the item itself."""
    if not isinstance(item, ReferenceItem):
        return item
    stored = served.responses.item(salt, item.id)
    if stored is None:
        raise NotFoundError(f"Item with id '{item.id}' not found.", param=f"input.{i}.id")
    return ANY_ITEM.validate_python(stored)


def _previous_response(served: Served, body: ResponseRequest) -> StoredResponse | None:
    """Return the previous response. Raises NotFoundError."""
    if body.previous_response_id is None:
        return None
    stored = served.responses.get(body.salt, body.previous_response_id)
    if stored is None or not body.previous_response_id.startswith("resp_"):
        raise NotFoundError(
            f"Previous response with id '{body.previous_response_id}' not found.",
            param="previous_response_id",
            code="previous_response_not_found",
        )
    return stored


def _stored_response(request: Request, served: Served) -> StoredResponse:
    id = request.path_params["id"]
    stored = served.responses.get(_salt_of_request(request), id)
    if stored is None or not id.startswith("resp_"):  # Anthropic's messages are kept there, too
        raise NotFoundError(f"Response with id '{id}' not found.", param="id")
    return stored


def _salt_of_request(request: Request) -> str:
    """Return the salt of the responses that this request may see."""
    return salt_of(request, request.query_params.get("cache_salt"))
