"""GET /health: whether the server makes progress. GET /ready: whether it takes requests."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from server.api.delivery import Json
from server.api.served import Health, Served


async def health(request: Request) -> Response:
    """200, or 503 while loading or stuck. A draining server is healthy."""
    served: Served = request.state.served
    return health_response(served.state())


async def ready(request: Request) -> Response:
    """200 if requests are taken, else 503."""
    served: Served = request.state.served
    return ready_response(served.state())


def health_response(state: Health) -> Response:
    return Json(state.as_json(), 200 if state.status in ("ok", "draining") else 503)


def ready_response(state: Health) -> Response:
    body = {"status": state.status}
    return Json(body) if state.status == "ok" else Json(body, 503, {"Retry-After": "1"})
