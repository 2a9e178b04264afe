"""GET /v1/models and /v1/models/{id}."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from server.api.delivery import Json
from server.api.served import ModelCard, Served
from server.errors import NotFoundError


async def list_models(_: Request, served: Served) -> Response:
    return Json({"object": "list", "data": [_card(model, served) for model in served.models]})


async def get_model(request: Request, served: Served) -> Response:
    """By its id or an alias."""
    id = request.path_params["id"]
    for model in served.models:
        if model.is_called(id):
            return Json(_card(model, served))
    raise NotFoundError(f"The model `{id}` does not exist", param="model", code="model_not_found")


def _card(model: ModelCard, served: Served) -> dict[str, Any]:
    return {
        "id": model.id,
        "object": "model",
        "created": model.created,
        "owned_by": "duo",
        "meta": {
            "n_ctx": model.n_ctx,
            "n_vocab": model.n_vocab,
            "n_params": model.n_params,
            "size": model.n_bytes,
            "quantization": model.quantization,
            "description": model.description,
            "note": model.note,
            "aliases": list(model.aliases),
            "draft": _drafts(served) if model is served.model else None,
        },
    }


def _drafts(served: Served) -> dict[str, Any]:
    """Drafters of the model at this moment."""
    health = served.health()
    accepted = [drafter for drafter in health.drafters if drafter.state == "accepted"]
    return {"mode": health.draft_mode, "drafters": len(accepted)}
