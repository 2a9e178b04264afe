"""POST /completion and /completions, as in llama-server."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from server.api.delivery import deliver
from server.api.native.native_answer import NativeAnswer
from server.api.native.native_request import NativeRequest
from server.api.services import Services
from server.api.stages.submit import prepared_texts
from server.api.stages.validate import check_model, on_prompt_thread, read


async def create(request: Request, services: Services) -> Response:
    """Answer a completion in llama-server's own format."""
    body = await read(request, NativeRequest)
    check_model(body.model, services.model)
    prompts = await on_prompt_thread(request, prepared_texts, services, body)
    return await deliver(request, NativeAnswer(services, body, prompts), stream=body.stream)
