"""POST /v1/chat/completions."""

from __future__ import annotations

from typing import Any, cast

from starlette.requests import Request
from starlette.responses import Response

from server.api.chat.chat_answer import ChatAnswer
from server.api.chat.chat_request import ChatRequest
from server.api.delivery import Json, deliver
from server.api.engine_requests import generation_requests, rendered
from server.api.incoming import aside, check_model, from_body, parsed, salted, validated
from server.api.served import Served


async def create(request: Request, served: Served) -> Response:
    body = await parse(request, served)
    asked = await aside(request, generation_requests, served, body)
    return await deliver(request, ChatAnswer(served, body, [asked]), stream=body.stream)


async def count(request: Request, served: Served) -> Response:
    """How many tokens the prompt of a chat completion with this body has."""
    return counted(await aside(request, n_tokens, served, await parse(request, served)))


def n_tokens(served: Served, body: ChatRequest) -> int:
    """Of the body's prompt. Slow: not for the event loop."""
    return len(served.history.rendered(rendered(served, body)[2], body.salt))


def counted(n: int) -> Response:
    return Json({"object": "response.input_tokens", "input_tokens": n})


async def parse(request: Request, served: Served) -> ChatRequest:
    """The validated body. Raises InvalidRequestError and NotFoundError."""
    return await from_body(request, lambda data: checked(served, salted(request, parsed(data))))


def checked(served: Served, data: dict[str, Any]) -> ChatRequest:
    """Raises InvalidRequestError and NotFoundError; ContextOverflowError for more messages than the context
    has tokens, before they are validated: templates write at least one token for each."""
    if isinstance(messages := data.get("messages"), list):
        served.room.check_tokens(len(cast(list[Any], messages)), estimated=True)
    body = validated(ChatRequest, data)
    check_model(body.model, served.model)
    return body
