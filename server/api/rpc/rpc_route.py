"""POST /rpc: a JSON-RPC 2.0 facade of the engine."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeAlias

from starlette.requests import Request
from starlette.responses import Response

from server.api import problem
from server.api.access import salt_of
from server.api.delivery import Json, unless_gone
from server.api.rpc.protocol import Call, Given, Reply, UnknownMethodError, failure, read, result
from server.api.rpc.rpc_completions import RpcCompletion
from server.api.rpc.rpc_params import (
    CompletionParams,
    HandleParams,
    InitParams,
    TokenizeParams,
    params_of,
)
from server.api.services import Services
from server.api.stages.prompted import Prompted
from server.api.stages.submit import prepared_texts
from server.api.stages.validate import check_model, from_body, on_prompt_thread
from server.api.statistics import shares
from server.engine.events import DrafterCount
from server.errors import DuoError

Method: TypeAlias = Callable[[Request, Services, Given], Awaitable[Any]]


async def answer(request: Request, _: Services) -> Response:
    """Answer a call, or a batch of calls, which run concurrently. If the client leaves, cancel them.

    Errors of calls are in their replies, with HTTP status 200. The status is 204 if no call wants a reply.
    """
    asked, batch = await from_body(request, read)
    replies = await unless_gone(request, _reply_to_all(request, asked))
    if not replies:
        return Response(status_code=204)
    return Json(replies if batch else replies[0])


async def _reply_to_all(request: Request, asked: list[Call | Reply]) -> list[Reply]:
    replies = await asyncio.gather(*(_reply_to(request, one) for one in asked))
    return [reply for reply in replies if reply is not None]


async def _reply_to(request: Request, asked: Call | Reply) -> Reply | None:
    """Return the reply to a call; None for a notification, even if it fails.

    `asked` may also be the error reply to an invalid call. It is returned unchanged.
    """
    if not isinstance(asked, Call):
        return asked
    if asked.notified and asked.method in GENERATING:
        return None  # nobody would ever read it
    try:
        if asked.method not in METHODS:
            raise UnknownMethodError(f"method: there are {', '.join(METHODS)}")
        found = await METHODS[asked.method](request, request.state.services, asked.params)
        reply = result(asked.id, found)
    except DuoError as error:
        reply = failure(asked.id, error)
    except Exception as error:
        reply = failure(asked.id, problem.defect(f"the method {asked.method}", error))
    return None if asked.notified else reply


async def _report_model(request: Request, services: Services, given: Given) -> Any:
    """Report the model, which was loaded when the server started."""
    check_model(params_of(request, InitParams, given).model, services.model)
    vocabulary, model = services.vocabulary, services.model
    return {
        "model": model.id,
        "description": model.description,
        "n_ctx": model.n_ctx,
        "n_params": model.n_params,
        "n_vocab": vocabulary.size,
        "bos": vocabulary.bos,
        "eos": vocabulary.eos,
        "version": services.fingerprint,
        "methods": list(METHODS),
    }


async def _poll_system_status(_request: Request, services: Services, _: Given) -> Any:
    health = services.state().as_json()
    told = {name: health[name] for name in ("status", "slots", "queued")}
    return {**told, "async_completions": len(services.handles)}


async def _tokenize_text(request: Request, services: Services, given: Given) -> Any:
    text = params_of(request, TokenizeParams, given).text
    tokens = await on_prompt_thread(request, partial(services.vocabulary.tokenize, special=True), text)
    return {"tokens": tokens, "length": len(tokens)}


async def _read_completion(
    request: Request, services: Services, given: Given
) -> tuple[CompletionParams, Prompted]:
    body = params_of(request, CompletionParams, given)
    check_model(body.model, services.model)
    [prompt] = await on_prompt_thread(request, prepared_texts, services, body)
    return body, prompt


async def _get_completion(request: Request, services: Services, given: Given) -> Any:
    completion = RpcCompletion(services, *await _read_completion(request, services, given))
    try:
        return await completion.whole()
    finally:
        completion.cancel()


async def _async_completion_init(request: Request, services: Services, given: Given) -> Any:
    """Begin a completion; return its handle and the length of its prompt in tokens."""
    body, prompt = await _read_completion(request, services, given)
    handle = services.handles.open(lambda: RpcCompletion(services, body, prompt), salt_of(request, None))
    return {"handle": handle, "prompt_stats": {"length": len(prompt.requests[0].prompt)}}


def _owned_handle(request: Request, given: Given) -> str:
    """Return the caller's salt followed by the handle that a call names, as Handles takes it."""
    return salt_of(request, None) + params_of(request, HandleParams, given).handle


async def _async_completion_poll(request: Request, services: Services, given: Given) -> Any:
    updates, finished = services.handles.updates(_owned_handle(request, given))
    return {"completion_updates": updates, "finished": finished}


async def _async_completion_cancel(request: Request, services: Services, given: Given) -> Any:
    services.handles.close(_owned_handle(request, given))
    return {"cancelled": True}


async def _speculative_status(_request: Request, services: Services, _: Given) -> Any:
    """Report the numbers of drafted and accepted tokens since the server started, and its drafters."""
    health, traffic = services.health().as_json(), services.traffic
    return {
        **{name: health[name] for name in ("draft_mode", "exactness", "gate", "drafters")},
        "steps": traffic.n_steps,
        "tokens_predicted": traffic.n_predicted,
        **shares(DrafterCount(traffic.n_drafted, traffic.n_accepted)),
        "sources": {name: shares(count) for name, count in traffic.sources.items()},
    }


METHODS: dict[str, Method] = {
    "init": _report_model,
    "poll_system_status": _poll_system_status,
    "tokenize": _tokenize_text,
    "get_completion": _get_completion,
    "async_completion_init": _async_completion_init,
    "async_completion_poll": _async_completion_poll,
    "async_completion_cancel": _async_completion_cancel,
    "speculative_status": _speculative_status,
}
GENERATING = ("get_completion", "async_completion_init", "async_completion_poll")
"""Methods that are useless without their result, so they are not run for notifications."""
