"""Read, stream again, cancel and delete stored responses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any

from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response

from server.api.access import salt_of
from server.api.answer import sse
from server.api.delivery import Json, Relay
from server.api.services import Services
from server.engine.request_account import tenant
from server.errors import (
    DuoError,
    FieldError,
    InvalidRequestError,
    LostReplyError,
    NotFoundError,
    OtherEventsError,
    StoreError,
)
from server.replies.kept import StoredResponse
from server.replies.reply_log import EVENT_END, LogReader
from server.replies.store import Orphan, Owner

MOST_ITEMS = 100
"""Maximum items of a page, as in OpenAI's API."""
CANCEL_S = 5.0
"""Seconds to wait for another lead to cancel its reply. A lead polls for cancellations every 0.5 s."""
CANCEL_POLL_S = 0.05  # seconds between two checks whether the reply has ended

Event = dict[str, Any]


async def input_items(request: Request, services: Services) -> Response:
    """Answer with the conversation that led to a stored response, as a page of items."""
    stored = await _stored_response(request, services)
    return Json(page_of(stored.input_items, request.query_params))


def page_of(all_items: Sequence[Event], query: QueryParams) -> Event:
    """Return the page of items that `limit`, `order` and `after` in a query ask for. Raises FieldError."""
    limit = query.get("limit", "20")
    if not (
        limit.isascii()
        and limit.isdigit()
        and len(limit) <= len(str(MOST_ITEMS))
        and 1 <= int(limit) <= MOST_ITEMS
    ):
        raise FieldError("limit", f"must be an integer from 1 to {MOST_ITEMS}")
    if (order := query.get("order", "desc")) not in ("asc", "desc"):
        raise FieldError("order", "must be asc or desc")
    items = list(all_items if order == "asc" else reversed(all_items))
    if (after := query.get("after")) is not None:
        places = [i for i, item in enumerate(items) if item["id"] == after]
        if not places:
            raise FieldError("after", f"there is no item with the id {after!r}")
        items = items[places[0] + 1 :]
    page = items[: int(limit)]
    first, last = (page[0]["id"], page[-1]["id"]) if page else (None, None)
    listed = {"object": "list", "data": page, "first_id": first, "last_id": last}
    return {**listed, "has_more": len(items) > len(page)}


async def retrieve(request: Request, services: Services) -> Response:
    """Answer with a stored response as it is now, or stream its events after number starting_after."""
    stored = await _stored_response(request, services)
    if request.query_params.get("stream", "false").lower() in ("false", "0"):
        return Json(stored.response)
    after = request.query_params.get("starting_after", "-1").removeprefix("+")
    digits = after.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 18):
        raise FieldError("starting_after", "must be the sequence number of an event")
    return await streamed(services, _salt_of_request(request), stored.response, int(after))


async def streamed(services: Services, salt: str, response: Event, after: int = -1) -> Relay:
    """Return a stream of a background response's events after number `after`; -1: all events.

    Raises:
        FieldError: The response has no log of events.
    """
    log = await services.replies.log(salt, response["id"])
    if log is None:
        raise FieldError("stream", "only a response that was created with background is streamed again")
    return Relay(_events(log, max(after, -1), response))


async def _events(log: LogReader, after: int, response: Event) -> AsyncIterator[bytes]:
    """Yield the events of a log after number `after`.

    If the log's writer or the store fails, the last event is an error, or `response` with the status failed.
    """
    try:
        async for chunk in log.events(after):
            after += chunk.count(EVENT_END)
            yield chunk
    except LostReplyError as error:
        yield _event("response.failed", after + 1, response=_failed(response, error))
    except (StoreError, OtherEventsError) as error:
        yield _error_event(error, after + 1)


def _event(type: str, number: int, **fields: Any) -> bytes:
    return b"event: " + type.encode() + b"\n" + sse({"type": type, **fields, "sequence_number": number})


def _error_event(error: DuoError, number: int) -> bytes:
    return _event("error", number, code="server_error", message=error.message, param=None)


async def store_failure(services: Services, orphan: Orphan, error: DuoError) -> None:
    """Store that a response has failed, because it cannot be continued; append this event to its log."""
    stored, number = await services.replies.get(orphan.owner.salt, orphan.id), orphan.log.n_events
    if stored is None:
        orphan.log.append(_error_event(error, number))
        return
    failed = _failed(stored.response, error)
    services.replies.put(orphan.owner, replace(stored, response=failed))
    orphan.log.append(_event("response.failed", number, response=failed))


def _failed(response: Event, error: DuoError) -> Event:
    failed = {"code": "server_error", "message": error.message}
    return {**response, "status": "failed", "error": failed}


async def cancel(request: Request, services: Services) -> Response:
    """Cancel a background response. A response that has ended is not changed."""
    stored = await _stored_response(request, services)
    if not stored.response.get("background"):
        raise InvalidRequestError("Cannot cancel a synchronous response.", param="id")
    return Json((await _ended(services, _salt_of_request(request), stored)).response)


async def _ended(services: Services, salt: str, stored: StoredResponse) -> StoredResponse:
    """Cancel a response if it runs, in this process or another, and return its state afterwards.

    The response may still run if another process has not cancelled it within CANCEL_S.
    """
    if not stored.runs:
        return stored
    if not await services.background.cancel(salt, stored.id):
        deadline = asyncio.get_running_loop().time() + CANCEL_S
        while stored.runs and asyncio.get_running_loop().time() < deadline:
            await services.replies.cancel(salt, stored.id)  # repeated, because the writer may change
            await asyncio.sleep(CANCEL_POLL_S)
            stored = await services.replies.get(salt, stored.id) or stored
    return await services.replies.get(salt, stored.id) or stored


async def delete(request: Request, services: Services) -> Response:
    """Delete a stored response, and cancel it if it runs. Responses that continue it stay."""
    stored = await _stored_response(request, services)
    salt = _salt_of_request(request)
    await _ended(services, salt, stored)
    services.background.forget(salt, stored.id)
    await services.replies.delete(Owner(salt, tenant()), stored.id)
    return Json({"id": stored.id, "object": "response", "deleted": True})


async def _stored_response(request: Request, services: Services) -> StoredResponse:
    """Return the response that a request names; as failed if its writer died before its end.

    Raises:
        NotFoundError: There is no such response.
    """
    id, salt = request.path_params["id"], _salt_of_request(request)
    # the store also has Anthropic's messages and conversations
    stored = await services.replies.get(salt, id) if id.startswith("resp_") else None
    if stored is None:
        raise NotFoundError(f"Response with id '{id}' not found.", param="id")
    if stored.runs and not await services.replies.is_written(salt, id):
        return replace(stored, response=_failed(stored.response, LostReplyError()))
    return stored


def _salt_of_request(request: Request) -> str:
    """Return the salt of the responses that this request may see."""
    return salt_of(request, request.query_params.get("cache_salt"))
