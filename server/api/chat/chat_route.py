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
from server.text.room import ANY


async def create(request: Request, served: Served) -> Response:
    """Answer a chat completion."""
    body = await parse(request, served)
    asked = await aside(request, generation_requests, served, body)
    return await deliver(request, ChatAnswer(served, body, [asked]), stream=body.stream)


async def count(request: Request, served: Served) -> Response:
    """Answer with the number of tokens in the prompt of a chat completion with this body."""
    body = await from_body(request, lambda data: checked(served, salted(request, parsed(data)), fits=False))
    return counted(await aside(request, n_tokens, served, body))


def n_tokens(served: Served, body: ChatRequest) -> int:
    """Return the number of the prompt's tokens, even if the context has no room for them.

    Slow: not for the event loop.
    """
    text = rendered(served, body, served.template.boundless)[2]
    return len(served.history.rendered(text, body.salt, ANY))


def counted(n: int) -> Response:
    return Json({"object": "response.input_tokens", "input_tokens": n})


async def parse(request: Request, served: Served) -> ChatRequest:
    """Return the validated body. Raises InvalidRequestError and NotFoundError."""
    return await from_body(request, lambda data: checked(served, salted(request, parsed(data))))


def checked(served: Served, data: dict[str, Any], *, fits: bool = True) -> ChatRequest:
    """Return the validated body.

    Args:
        served: What the server offers.
        data: The body.
        fits: Refuse more messages than the context has tokens before validating them, since each takes a
            token.

    Raises:
        InvalidRequestError: A field is not valid.
        NotFoundError: There is no such model.
        ContextOverflowError: There are too many messages.
    """
    if fits and isinstance(messages := data.get("messages"), list):
        served.room.check_tokens(len(cast(list[Any], messages)), estimated=True)
    body = validated(ChatRequest, data)
    check_model(body.model, served.model)
    return body
