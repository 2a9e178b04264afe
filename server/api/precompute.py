"""POST /v1/precompute: while the server is idle, evaluate a conversation that is still being typed."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from server.api.chat.chat_request import ChatRequest
from server.api.chat.chat_route import parse
from server.api.delivery import Json, unless_gone
from server.api.services import Services
from server.api.stages.picture_words import shown_messages
from server.api.stages.render import setting_of
from server.api.stages.validate import on_prompt_thread
from server.engine.events import Failed, Finished, Started
from server.engine.generate import Generation
from server.engine.request import GenerationRequest
from server.llama.backend import PICTURE_IDS


async def create(request: Request, services: Services) -> Response:
    """Answer once the prompt is evaluated, or once a request needs the engine. Stop if the client leaves."""
    body = await parse(request, services)
    work = await on_prompt_thread(request, _without_last, services, body)
    generation = services.generator.submit(work)
    try:
        return Json(await unless_gone(request, _wait_for_prompt(generation, len(work.prompt))))
    finally:
        generation.cancel()


def _without_last(services: Services, body: ChatRequest) -> GenerationRequest:
    """Return a request to evaluate the prompt without its last token, which further typing may change."""
    messages, pictures = shown_messages(services, body)
    text = services.template.begun(messages, setting_of(services, body))
    tokens = services.history.rendered(text, body.salt)
    tokens = tokens[:-1] if len(tokens) > 1 else tokens
    while pictures and tokens[-1] >= PICTURE_IDS:  # a whole picture must be followed by a token
        tokens.pop()
    return GenerationRequest(tokens, salt=body.salt, precompute=True, pictures=services.spans(tokens))


async def _wait_for_prompt(generation: Generation, n_prompt: int) -> dict[str, Any]:
    *before, last = [event async for events in generation for event in events]
    if isinstance(last, Failed):
        raise last.error
    return {
        "object": "precompute",
        "completed": isinstance(last, Finished) and last.reason == "stop",
        "prompt_tokens": n_prompt,
        "cached_tokens": sum(event.n_cached for event in before if isinstance(event, Started)),
    }
