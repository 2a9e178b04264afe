"""GET and POST /lora-adapters, as in llama-server. Scales cannot be changed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import orjson
from starlette.requests import Request
from starlette.responses import Response

from server.api.delivery import Json
from server.api.generation_fields import AdapterScale
from server.api.services import Services
from server.api.stages.validate import from_body, validated
from server.errors import InvalidRequestError, UnsupportedFieldError


async def list_adapters(_: Request, services: Services) -> Response:
    """Answer with the adapters and their scales."""
    adapters = enumerate(services.adapters)
    return Json([{"id": id, "path": name, "scale": scale} for id, (name, scale) in adapters])


async def scale(request: Request, services: Services) -> Response:
    """Accept the scales that the server started with, and refuse others. An omitted adapter has scale 0."""
    check_scales(services, await from_body(request, _read_scales), "scale")
    return Json({"success": True})


def check_scales(services: Services, given: Sequence[AdapterScale], param: str) -> None:
    """Check that the scales in the field `param` are those that the server started with.

    An adapter that is not listed has scale 0.

    Raises:
        UnsupportedFieldError: A scale differs.
    """
    scales = {one.id: one.scale for one in given if one.scale}
    if scales != {id: scale for id, (_, scale) in enumerate(services.adapters) if scale}:
        raise UnsupportedFieldError(param, "scales are those of --lora-scaled: this server changes none")


def _read_scales(body: bytes) -> list[AdapterScale]:
    try:
        entries = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise InvalidRequestError(f"the body is not valid JSON: {error}") from error
    if not isinstance(entries, list):
        raise InvalidRequestError("the body must be a list of objects with id and scale")
    return [validated(AdapterScale, one) for one in cast(list[Any], entries)]
