"""POST /completion and /completions, as llama-server has them."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from server.api.delivery import deliver
from server.api.native.native_answer import NativeAnswer
from server.api.native.native_request import NativeRequest
from server.api.served import Served
from server.api.stages.submit import prepared_texts
from server.api.stages.validate import check_model, on_prompt_thread, read


async def create(request: Request, served: Served) -> Response:
    """Answer a completion in llama-server's own form."""
    body = await read(request, NativeRequest)
    check_model(body.model, served.model)
    prompts = await on_prompt_thread(request, prepared_texts, served, body)
    return await deliver(request, NativeAnswer(served, body, prompts), stream=body.stream)
