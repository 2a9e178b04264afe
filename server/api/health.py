"""GET /health reports whether the server makes progress, GET /ready whether it accepts requests."""

from __future__ import annotations

from starlette.responses import Response

from server.api.delivery import Json
from server.api.services import Health


def health(state: Health) -> Response:
    """Answer 200, or 503 while loading or stuck. A draining server is healthy."""
    return Json(state.as_json(), 200 if state.status in ("ok", "draining") else 503)


def ready(state: Health) -> Response:
    """Answer 200 if the server accepts requests, else 503."""
    body = {"status": state.status}
    return Json(body) if state.status == "ok" else Json(body, 503, {"Retry-After": "1"})


V1 = "/v1/health"
ROUTES = {"/health": health, V1: health, "/ready": ready}
