"""The HTTP application: routes, middleware, exception handlers, lifespan."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, Response
from starlette.routing import BaseRoute, Mount, Route, WebSocketRoute
from starlette.staticfiles import StaticFiles

from server.api import (
    adapters,
    delivery,
    embeddings,
    health,
    lend_route,
    metrics,
    models,
    precompute,
    problem,
    props,
    rerank,
    resumed_route,
    slots_route,
    tokens,
)
from server.api.access import SOCKET
from server.api.chat import chat_again
from server.api.chat import chat_route as chat
from server.api.completions import completions_route as completions
from server.api.decisions import decisions_route as decisions
from server.api.decisions import systemone_route as systemone
from server.api.messages import messages_route as messages
from server.api.middleware import AccessGate, Cors, DefectNet, Edge, RequestFrame
from server.api.native import infill
from server.api.native import native_route as native
from server.api.origins import LOCAL, LOCAL_ORIGINS
from server.api.responses import conversations_route as conversations
from server.api.responses import response_again
from server.api.responses import responses_route as responses
from server.api.responses import stored_route as stored
from server.api.rpc import rpc_route as rpc
from server.api.services import Health, Services
from server.api.taking_up import TakingUp, Ways
from server.engine.request_account import expected
from server.errors import BusyError, DuoError

WEB = Path(__file__).parent.parent / "web"
PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
}
"""Headers of HTML pages: browsers load only the server's own files, and send nothing elsewhere."""
LENDING = Path(__file__).parent.parent.parent / "drafters" / "browser"
LENDING_HEADERS = PAGE_HEADERS | {
    "Content-Security-Policy": PAGE_HEADERS["Content-Security-Policy"].replace(
        "script-src 'self'", "script-src 'self' 'wasm-unsafe-eval'; worker-src blob:"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Embedder-Policy": "require-corp",
}
"""Headers of the page that drafts: it runs WebAssembly, with threads where browsers allow them."""
METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE"]
WAYS: Ways = {
    "chat": (chat_again.go_on, chat_again.store_failure),
    "response": (response_again.go_on, stored.store_failure),
}
HANDLERS: dict[Any, Any] = {
    DuoError: problem.on_duo_error,
    HTTPException: problem.on_http_exception,
    ClientDisconnect: problem.on_disconnect,
}
CONTRACTS = (
    WEB / "openapi.yaml",
    Path(__file__).parent.parent.parent / "openapi.yaml",
)
"""Paths of openapi.yaml: in a wheel, and in a checkout."""


def create_app(services: Services, edge: Edge | None = None) -> Starlette:
    """Return the application, without loading or starting anything. `edge`: settings of its middleware."""
    edge = edge or Edge()

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncGenerator[dict[str, Services]]:
        delivery.warm_up()
        taking_up = TakingUp(services, WAYS)
        try:
            yield {"services": services}  # becomes request.state.services
        finally:
            taking_up.close()
            await services.background.close()
            await services.replies.close()
            services.handles.close_all()
            services.template.stop()
            await services.history.close()
            await services.prompt_work.close()

    return Starlette(
        routes=routes(),
        middleware=[*_middleware_of(edge), Middleware(AccessGate, edge=edge)],
        exception_handlers=HANDLERS,
        lifespan=lifespan,
    )


def create_waiting_app(state: Health, edge: Edge) -> Starlette:
    """Return the application while the model loads. It answers 503, except for pages and health."""

    async def waiting(request: Request) -> Response:
        if handler := health.ROUTES.get(request.url.path):
            return handler(state)
        loading = BusyError("the server is loading its model", draining=True)
        return problem.respond(loading, request.url.path)

    return Starlette(
        routes=[*page(), Route("/{path:path}", waiting, methods=METHODS)], middleware=_middleware_of(edge)
    )


def _middleware_of(edge: Edge) -> list[Middleware]:
    return [
        Middleware(RequestFrame, edge=edge),
        Middleware(
            Cors,
            allow_origins=[origin for origin in edge.cors_origins if origin != LOCAL],
            allow_origin_regex=LOCAL_ORIGINS if LOCAL in edge.cors_origins else None,
            allow_methods=["GET", "POST", "DELETE", "OPTIONS"],
            allow_headers=["*"],
            allow_credentials=True,
            expose_headers=["x-request-id", "request-id", "openai-processing-ms", "retry-after"],
        ),
        Middleware(DefectNet),
    ]


def routes() -> list[BaseRoute]:
    """Return all routes. /v1/completions is OpenAI's route; /completions is llama-server's."""
    api = _with_and_without_v1()
    v1 = [
        *api,
        _generating_route("/completions", completions.create),
        _health_route("/health", health.health),
    ]
    return [
        *(_health_route(path, handler) for path, handler in health.ROUTES.items() if path != health.V1),
        Mount("/v1", routes=v1),
        *api,
        _generating_route("/completion", native.create),
        _generating_route("/completions", native.create),
        _generating_route("/infill", infill.create),
        _route_to("/embedding", embeddings.create_native),
        _route_to("/metrics", metrics.metrics, "GET"),
        _route_to("/rpc", rpc.answer),
        _route_to("/lora-adapters", adapters.list_adapters, "GET"),
        _route_to("/lora-adapters", adapters.scale),
        _route_to("/slots", slots_route.list_slots, "GET"),
        _route_to("/slots/{id}", slots_route.act),
        _route_to("/lend/model", lend_route.model, "GET"),
        _route_to("/lend/link", lend_route.link, "GET"),
        WebSocketRoute(SOCKET, lend_route.socket),
        *page(),
    ]


def _with_and_without_v1() -> list[BaseRoute]:
    """Return the routes that exist both with and without the prefix /v1."""
    return [
        _generating_route("/chat/completions", chat.create),
        _route_to("/chat/completions/input_tokens", chat.count),
        _generating_route("/responses", responses.create),
        _route_to("/responses/input_tokens", responses.count),
        _generating_route("/responses/compact", responses.compact),
        _route_to("/responses/{id}/input_items", stored.input_items, "GET"),
        _route_to("/responses/{id}/cancel", stored.cancel),
        _route_to("/responses/{id}", stored.retrieve, "GET"),
        _route_to("/responses/{id}", stored.delete, "DELETE"),
        *_conversations(),
        _route_to("/stream", resumed_route.read_again, "GET"),
        _route_to("/stream", resumed_route.remove, "DELETE"),
        _route_to("/stream/{conv_id:path}", resumed_route.read_again, "GET"),
        _route_to("/stream/{conv_id:path}", resumed_route.remove, "DELETE"),
        _route_to("/streams/lookup", resumed_route.look_up),
        _generating_route("/decisions", decisions.create),
        _generating_route("/systemone", systemone.create),
        _generating_route("/messages", messages.create),
        _route_to("/messages/count_tokens", messages.count_tokens),
        _route_to("/precompute", precompute.create),
        _route_to("/embeddings", embeddings.create),
        _route_to("/rerank", rerank.create),
        _route_to("/reranking", rerank.create),
        _route_to("/tokenize", tokens.tokenize),
        _route_to("/detokenize", tokens.detokenize),
        _route_to("/apply-template", tokens.apply_template),
        _route_to("/props", props.props, "GET"),
        _route_to("/models", models.list_models, "GET"),
        _route_to("/models/{id:path}", models.get_model, "GET"),
    ]


def _conversations() -> list[BaseRoute]:
    """Return the routes of OpenAI's conversations."""
    one = "/conversations/{id}"
    return [
        _route_to("/conversations", conversations.create),
        _route_to(one, conversations.retrieve, "GET"),
        _route_to(one, conversations.update),
        _route_to(one, conversations.delete, "DELETE"),
        _route_to(f"{one}/items", conversations.list_items, "GET"),
        _route_to(f"{one}/items", conversations.add_items),
        _route_to(f"{one}/items/{{item_id}}", conversations.retrieve_item, "GET"),
        _route_to(f"{one}/items/{{item_id}}", conversations.delete_item, "DELETE"),
    ]


def _route_to(
    path: str, handler: Callable[[Request, Services], Awaitable[Response]], method: str = "POST"
) -> Route:
    async def endpoint(request: Request) -> Response:
        return await handler(request, request.state.services)

    return Route(path, endpoint, methods=[method])


def _generating_route(path: str, handler: Callable[[Request, Services], Awaitable[Response]]) -> Route:
    """Return a route that, if the queue is full, refuses a request before reading its body."""

    async def with_place(request: Request, services: Services) -> Response:
        with expected(services.places):
            return await handler(request, services)

    return _route_to(path, with_place)


def _health_route(path: str, handler: Callable[[Health], Response]) -> Route:
    async def endpoint(request: Request) -> Response:
        return handler(request.state.services.state())

    return Route(path, endpoint, methods=["GET"])


def page() -> list[BaseRoute]:
    """Return the routes of pages, their files and openapi.yaml, which need no model."""
    return [
        Route("/openapi.yaml", _serve_contract, methods=["GET"]),
        Route("/", _page_handler(WEB / "index.html", PAGE_HEADERS), methods=["GET"]),
        Route("/status", _page_handler(WEB / "status.html", PAGE_HEADERS), methods=["GET"]),
        Route("/lend", _page_handler(LENDING / "lend.html", LENDING_HEADERS), methods=["GET"]),
        Mount("/web", StaticFiles(directory=WEB)),
        Mount("/lend/page", StaticFiles(directory=LENDING)),
    ]


def _page_handler(file: Path, headers: Mapping[str, str]) -> Callable[[Request], Awaitable[Response]]:
    html = file.read_bytes()  # in memory: reading it in a thread each time is slow on a busy machine

    async def page(request: Request) -> Response:
        """Return the page. Raises HTTPException if pages are hidden, but never while the model loads."""
        services: Services | None = getattr(request.state, "services", None)
        if services is not None and "ui" in services.hidden:
            raise HTTPException(404)
        return Response(html, headers=headers, media_type="text/html")

    return page


async def _serve_contract(_: Request) -> FileResponse:
    contract = next(path for path in CONTRACTS if path.exists())
    return FileResponse(contract, media_type="application/yaml")
