"""GET /health: whether the decode loop is alive, who drafts, how busy it is."""

from __future__ import annotations

import orjson
from starlette.requests import Request
from starlette.responses import Response

from server.api.served import Served


async def health(request: Request) -> Response:
    """200, or 503 while loading or when there is work and no progress."""
    served: Served = request.state.served
    state = served.health()
    status = 200 if state.status == "ok" else 503
    return Response(orjson.dumps(state.as_json()), status, media_type="application/json")
