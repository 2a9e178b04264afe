"""GET /v1/models and /v1/models/{id}."""

from __future__ import annotations

from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response

from server.api.served import ModelCard, Served
from server.errors import NotFoundError


async def list_models(request: Request) -> Response:
    served: Served = request.state.served
    body = {"object": "list", "data": [_card(served.model)]}
    return Response(orjson.dumps(body), media_type="application/json")


async def get_model(request: Request) -> Response:
    served: Served = request.state.served
    id = request.path_params["id"]
    if id not in (served.model.id, "default"):
        raise NotFoundError(f"The model `{id}` does not exist", param="model", code="model_not_found")
    return Response(orjson.dumps(_card(served.model)), media_type="application/json")


def _card(model: ModelCard) -> dict[str, Any]:
    return {
        "id": model.id,
        "object": "model",
        "created": model.created,
        "owned_by": "duo",
        "meta": {
            "n_ctx": model.n_ctx,
            "n_params": model.n_params,
            "description": model.description,
            "note": model.note,
        },
    }
