"""GET /health and /ready: whether the decode loop is alive, who drafts, how busy it is; and whether to send
anything here."""

from __future__ import annotations

import orjson
from starlette.requests import Request
from starlette.responses import Response

from server.api.served import Health, Served

RETRY = {"Retry-After": "1"}


async def health(request: Request) -> Response:
    """200, or 503 while loading or when there is work and no progress. A server that drains is well."""
    served: Served = request.state.served
    return health_response(served.state())


async def ready(request: Request) -> Response:
    """200 if requests are taken, else 503."""
    served: Served = request.state.served
    return ready_response(served.state())


def health_response(state: Health) -> Response:
    well = state.status in ("ok", "draining")
    return Response(orjson.dumps(state.as_json()), 200 if well else 503, media_type="application/json")


def ready_response(state: Health) -> Response:
    body = orjson.dumps({"status": state.status})
    if state.status == "ok":
        return Response(body, media_type="application/json")
    return Response(body, 503, RETRY, "application/json")
