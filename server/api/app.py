"""The HTTP application: routes, middleware, exception handlers, lifespan."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypedDict

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ExceptionHandler

from server.api import (
    delivery,
    embeddings,
    health,
    metrics,
    models,
    precompute,
    problem,
    props,
    slots_route,
    tokens,
)
from server.api.access import AccessGate
from server.api.chat import chat_route as chat
from server.api.completions import completions_route as completions
from server.api.middleware import DefectNet, Edge, RequestFrame
from server.api.responses import responses_route as responses
from server.api.rpc import rpc_route as rpc
from server.api.served import Health, Served
from server.errors import BusyError, DuoError

WEB = Path(__file__).parent.parent / "web"
METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE"]
HANDLERS: dict[Any, ExceptionHandler] = {
    DuoError: problem.on_duo_error,
    HTTPException: problem.on_http_exception,
    ClientDisconnect: problem.on_disconnect,
}
CONTRACTS = (
    WEB / "openapi.yaml",
    Path(__file__).parent.parent.parent / "openapi.yaml",
)  # in a wheel, in a checkout


class RequestState(TypedDict):
    """What a request finds in request.state."""

    served: Served


def create_app(served: Served, edge: Edge | None = None) -> Starlette:
    """Loads nothing, starts nothing."""
    edge = edge or Edge()

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncGenerator[RequestState]:
        delivery.warm_up()
        try:
            yield {"served": served}
        finally:
            served.handles.close_all()
            served.template.stop()
            await served.history.close()
            await served.prompt_work.close()

    return Starlette(
        routes=routes(),
        middleware=[*_frame(edge), Middleware(AccessGate, access=edge.access)],
        exception_handlers=HANDLERS,
        lifespan=lifespan,
    )


def create_waiting_app(state: Health, edge: Edge) -> Starlette:
    """While the model loads: the page, and a 503 for everything else."""

    async def waiting(request: Request) -> Response:
        if request.url.path == "/health":
            return health.health_response(state)
        if request.url.path == "/ready":
            return health.ready_response(state)
        return problem.respond(BusyError("the server is loading its model", draining=True))

    return Starlette(
        routes=[*page(), Route("/{path:path}", waiting, methods=METHODS)], middleware=_frame(edge)
    )


def _frame(edge: Edge) -> list[Middleware]:
    """The middleware of every request."""
    return [
        Middleware(RequestFrame, edge=edge),
        Middleware(
            CORSMiddleware,
            allow_origins=list(edge.cors_origins),
            allow_methods=["*"],
            allow_headers=["*"],
            expose_headers=["x-request-id", "openai-processing-ms", "retry-after"],
        ),
        Middleware(DefectNet),
    ]


def routes() -> list[BaseRoute]:
    """OpenAI's routes exist with and without /v1."""
    api = [
        Route("/chat/completions", chat.create, methods=["POST"]),
        Route("/completions", completions.create, methods=["POST"]),
        Route("/responses", responses.create, methods=["POST"]),
        Route("/responses/{id}", responses.retrieve, methods=["GET"]),
        Route("/responses/{id}", responses.delete, methods=["DELETE"]),
        Route("/precompute", precompute.create, methods=["POST"]),
        Route("/embeddings", embeddings.create, methods=["POST"]),
        Route("/tokenize", tokens.tokenize, methods=["POST"]),
        Route("/detokenize", tokens.detokenize, methods=["POST"]),
        Route("/apply-template", tokens.apply_template, methods=["POST"]),
        Route("/props", props.props, methods=["GET"]),
        Route("/models", models.list_models, methods=["GET"]),
        Route("/models/{id:path}", models.get_model, methods=["GET"]),
    ]
    return [
        Mount("/v1", routes=api),
        *api,
        Route("/health", health.health, methods=["GET"]),
        Route("/ready", health.ready, methods=["GET"]),
        Route("/metrics", metrics.metrics, methods=["GET"]),
        Route("/rpc", rpc.answer, methods=["POST"]),
        Route("/slots", slots_route.list_slots, methods=["GET"]),
        Route("/slots/{id}", slots_route.act, methods=["POST"]),
        *page(),
    ]


def page() -> list[BaseRoute]:
    """Routes that need no model."""
    return [
        Route("/openapi.yaml", _contract, methods=["GET"]),
        Route("/", _page, methods=["GET"]),
        Mount("/web", StaticFiles(directory=WEB)),
    ]


async def _page(_: Request) -> FileResponse:
    return FileResponse(WEB / "index.html")


async def _contract(_: Request) -> FileResponse:
    contract = next(path for path in CONTRACTS if path.exists())
    return FileResponse(contract, media_type="application/yaml")
