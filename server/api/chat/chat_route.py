"""POST /v1/chat/completions."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from server.api.chat.chat_answer import ChatAnswer
from server.api.chat.chat_request import ChatRequest
from server.api.delivery import Json, deliver
from server.api.services import Services
from server.api.stages.render import rendered
from server.api.stages.submit import prepared_chat
from server.api.stages.validate import checked, from_body, on_prompt_thread, parsed, salted
from server.text.room import ANY


async def create(request: Request, services: Services) -> Response:
    """Answer a chat completion."""
    body = await parse(request, services)
    asked = await on_prompt_thread(request, prepared_chat, services, body)
    return await deliver(request, ChatAnswer(services, body, [asked]), stream=body.stream)


async def count(request: Request, services: Services) -> Response:
    """Answer with the number of prompt tokens that a chat completion with this body would have."""
    body = await from_body(request, lambda data: checked(services, salted(request, parsed(data)), fits=False))
    return counted(await on_prompt_thread(request, n_tokens, services, body))


def n_tokens(services: Services, body: ChatRequest) -> int:
    """Return the number of tokens in the prompt, even if the context has no room for them.

    Slow: not for the event loop.
    """
    prompt = rendered(services, body, services.template.boundless)
    return len(services.history.rendered(prompt.text, body.salt, ANY))


def counted(n: int) -> Response:
    return Json({"object": "response.input_tokens", "input_tokens": n})


async def parse(request: Request, services: Services) -> ChatRequest:
    """Return the validated body. Raises InvalidRequestError and NotFoundError."""
    return await from_body(request, lambda data: checked(services, salted(request, parsed(data))))
