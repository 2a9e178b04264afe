"""GET and POST /lora-adapters, as llama-server has them. Scales are those of the start."""

from __future__ import annotations

from typing import Any, cast

import orjson
from starlette.requests import Request
from starlette.responses import Response

from server.api.body import Body, Count, Finite
from server.api.delivery import Json
from server.api.incoming import from_body, validated
from server.api.served import Served
from server.errors import InvalidRequestError, UnsupportedFieldError


class AdapterScale(Body):
    id: Count
    scale: Finite


async def list_adapters(_: Request, served: Served) -> Response:
    adapters = enumerate(served.adapters)
    return Json([{"id": id, "path": name, "scale": scale} for id, (name, scale) in adapters])


async def scale(request: Request, served: Served) -> Response:
    """Scales as they are change nothing; one that is not named is 0."""
    given = await from_body(request, _scales)
    if given != {id: scale for id, (_, scale) in enumerate(served.adapters) if scale}:
        raise UnsupportedFieldError("scale", "scales are those of --lora-scaled: this server changes none")
    return Json({"success": True})


def _scales(body: bytes) -> dict[int, float]:
    """Those that are not 0."""
    try:
        entries = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise InvalidRequestError(f"the body is not valid JSON: {error}") from error
    if not isinstance(entries, list):
        raise InvalidRequestError("the body must be a list of objects with id and scale")
    found = [validated(AdapterScale, one) for one in cast(list[Any], entries)]
    return {one.id: one.scale for one in found if one.scale}
