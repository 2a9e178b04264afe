"""POST /v1/messages and /v1/messages/count_tokens, Anthropic's Messages API, over chat completions."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from server.api.chat.chat_route import checked, n_tokens
from server.api.delivery import Json, deliver
from server.api.engine_requests import generation_requests
from server.api.incoming import aside, read
from server.api.messages.messages_answer import MessagesAnswer
from server.api.messages.messages_as_chat import NAMES, chat_of
from server.api.messages.messages_request import MessagesRequest
from server.api.renaming import renamed
from server.api.served import Served


async def create(request: Request, served: Served) -> Response:
    body = await read(request, MessagesRequest)
    with renamed(NAMES):
        chat = checked(served, chat_of(body))
        asked = await aside(request, generation_requests, served, chat)
        answer = MessagesAnswer(served, chat, asked, body)
    return await deliver(request, answer, stream=body.stream)


async def count_tokens(request: Request, served: Served) -> Response:
    """Of the prompt that a message with this body would have."""
    body = await read(request, MessagesRequest)
    with renamed(NAMES):
        n = await aside(request, n_tokens, served, checked(served, chat_of(body)))
    return Json({"input_tokens": n})
