"""POST /v1/chat/completions."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from server.api.chat.chat_answer import ChatAnswer
from server.api.chat.chat_request import ChatRequest
from server.api.delivery import Json, deliver
from server.api.served import Served
from server.api.stages.render import rendered
from server.api.stages.submit import prepared_chat
from server.api.stages.validate import checked, from_body, on_prompt_thread, parsed, salted
from server.text.room import ANY


async def create(request: Request, served: Served) -> Response:
    """Answer a chat completion."""
    body = await parse(request, served)
    asked = await on_prompt_thread(request, prepared_chat, served, body)
    return await deliver(request, ChatAnswer(served, body, [asked]), stream=body.stream)


async def count(request: Request, served: Served) -> Response:
    """Answer with the number of tokens in the prompt of a chat completion with this body."""
    body = await from_body(request, lambda data: checked(served, salted(request, parsed(data)), fits=False))
    return counted(await on_prompt_thread(request, n_tokens, served, body))


def n_tokens(served: Served, body: ChatRequest) -> int:
    """Return the number of tokens in the prompt, even if the context has no room for them.

    Slow: not for the event loop.
    """
    prompt = rendered(served, body, served.template.boundless)
    return len(served.history.rendered(prompt.text, body.salt, ANY))


def counted(n: int) -> Response:
    return Json({"object": "response.input_tokens", "input_tokens": n})


async def parse(request: Request, served: Served) -> ChatRequest:
    """Return the validated body. Raises InvalidRequestError and NotFoundError."""
    return await from_body(request, lambda data: checked(served, salted(request, parsed(data))))
