"""POST /v1/responses, OpenAI's Responses API, over chat completions. GET and DELETE /v1/responses/{id} for
stored responses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from server.api.access import salt_of
from server.api.chat.chat_route import checked, counted, n_tokens
from server.api.delivery import Json, deliver
from server.api.engine_requests import generation_requests
from server.api.incoming import aside, read
from server.api.renaming import renamed
from server.api.responses.request_as_chat import NAMES, chat_of, messages_of
from server.api.responses.response_answer import ResponseAnswer
from server.api.responses.response_request import ResponseRequest
from server.api.responses.store import StoredResponse
from server.api.served import Served
from server.errors import FieldError, NotFoundError


async def create(request: Request, served: Served) -> Response:
    body = await read(request, ResponseRequest)
    messages = [*_before(served, body), *messages_of(body.input)]
    with renamed(NAMES):
        chat = checked(served, chat_of(body, messages))
        asked = await aside(request, generation_requests, served, chat)
        answer = ResponseAnswer(served, chat, asked, body, messages)
    return await deliver(request, answer, stream=body.stream)


async def count(request: Request, served: Served) -> Response:
    """How many tokens the prompt of a request with this body has."""
    body = await read(request, ResponseRequest)
    with renamed(NAMES):
        chat = checked(served, chat_of(body, [*_before(served, body), *messages_of(body.input)]))
        return counted(await aside(request, n_tokens, served, chat))


async def retrieve(request: Request, served: Served) -> Response:
    if request.query_params.get("stream", "false").lower() not in ("false", "0"):
        raise FieldError("stream", "a response that has ended is told whole")
    return Json(_stored(request, served).response)


async def delete(request: Request, served: Served) -> Response:
    """Deletes a stored response; those that continue it stay."""
    id = _stored(request, served).response["id"]
    served.responses.delete(_salt(request), id)
    return Json({"id": id, "object": "response", "deleted": True})


def _before(served: Served, body: ResponseRequest) -> Sequence[dict[str, Any]]:
    """The messages of the previous response. Raises NotFoundError."""
    if body.previous_response_id is None:
        return ()
    stored = served.responses.get(body.salt, body.previous_response_id)
    if stored is None:
        raise NotFoundError(
            f"Previous response with id '{body.previous_response_id}' not found.",
            param="previous_response_id",
            code="previous_response_not_found",
        )
    return stored.messages


def _stored(request: Request, served: Served) -> StoredResponse:
    id = request.path_params["id"]
    stored = served.responses.get(_salt(request), id)
    if stored is None:
        raise NotFoundError(f"Response with id '{id}' not found.", param="id")
    return stored


def _salt(request: Request) -> str:
    """The salt of the responses that this request may see."""
    return salt_of(request, request.query_params.get("cache_salt"))
