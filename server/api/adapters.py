"""GET and POST /lora-adapters, as llama-server has them. Scales are those of the start."""

from __future__ import annotations

from typing import Any, cast

import orjson
from starlette.requests import Request
from starlette.responses import Response

from server.api.delivery import Json
from server.api.incoming import from_body
from server.api.served import Served
from server.errors import InvalidRequestError, UnsupportedFieldError


async def list_adapters(_: Request, served: Served) -> Response:
    adapters = enumerate(served.adapters)
    return Json([{"id": id, "path": name, "scale": scale} for id, (name, scale) in adapters])


async def scale(request: Request, served: Served) -> Response:
    """Scales as they are change nothing; one that is not named is 0."""
    given = await from_body(request, _scales)
    if given != {id: scale for id, (_, scale) in enumerate(served.adapters) if scale}:
        raise UnsupportedFieldError("scale", "scales are those of --lora-scaled: this server changes none")
    return Json({"success": True})


def _scales(body: bytes) -> dict[Any, Any]:
    try:
        entries = cast(list[Any], orjson.loads(body))
        return {entry["id"]: entry["scale"] for entry in entries if entry["scale"]}
    except (orjson.JSONDecodeError, TypeError, KeyError) as error:
        raise InvalidRequestError("the body must be a list of objects with id and scale") from error
