"""The HTTP application: routes, middleware, exception handlers, and the state of its lifespan."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypedDict

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from server.api import chat, health, metrics, models, precompute, problem, slots
from server.api.middleware import DefectNet, RequestFrame
from server.api.served import Served
from server.errors import DuoError

WEB = Path(__file__).parent / "web"
CONTRACTS = (WEB / "openapi.yaml", Path(__file__).parent.parent / "openapi.yaml")  # in a wheel, in a checkout


class State(TypedDict):
    """What a request finds in request.state."""

    served: Served


def create_app(served: Served) -> Starlette:
    """The application over what is served. Loads nothing, starts nothing."""

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncGenerator[State]:
        try:
            yield {"served": served}
        finally:
            await served.history.close()

    return Starlette(
        routes=routes(),
        middleware=[
            Middleware(RequestFrame),
            Middleware(
                CORSMiddleware,
                allow_origins=["*"],
                allow_methods=["*"],
                allow_headers=["*"],
                expose_headers=["x-request-id", "openai-processing-ms", "retry-after"],
            ),
            Middleware(DefectNet),
        ],
        exception_handlers={
            DuoError: problem.on_duo_error,
            HTTPException: problem.on_http_exception,
        },
        lifespan=lifespan,
    )


def routes() -> list[BaseRoute]:
    """Every route; those of OpenAI's API with and without /v1."""
    api = [
        Route("/chat/completions", chat.create, methods=["POST"]),
        Route("/precompute", precompute.create, methods=["POST"]),
        Route("/models", models.list_models, methods=["GET"]),
        Route("/models/{id:path}", models.get_model, methods=["GET"]),
    ]
    return [
        Mount("/v1", routes=api),
        *api,
        Route("/health", health.health, methods=["GET"]),
        Route("/metrics", metrics.metrics, methods=["GET"]),
        Route("/slots", slots.list_slots, methods=["GET"]),
        Route("/slots/{id}", slots.act, methods=["POST"]),
        Route("/openapi.yaml", _contract, methods=["GET"]),
        Route("/", _page, methods=["GET"]),
        Mount("/web", StaticFiles(directory=WEB)),
    ]


async def _page(_: Request) -> FileResponse:
    return FileResponse(WEB / "index.html")


async def _contract(_: Request) -> FileResponse:
    contract = next(path for path in CONTRACTS if path.exists())
    return FileResponse(contract, media_type="application/yaml")
