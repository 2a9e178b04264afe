"""GET /v1/models and /v1/models/{id}, in OpenAI's format, or in Anthropic's for its clients."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from server.api.delivery import Json
from server.api.services import ModelCard, Services
from server.api.unseen import TEXT_ONLY, Senses
from server.errors import NotFoundError

ANTHROPICS = "anthropic-version"
"""Header by which Anthropic's clients are known: all send it."""


async def list_models(request: Request, services: Services) -> Response:
    """Answer with all models on one page."""
    if ANTHROPICS in request.headers:
        cards = [_anthropic_card(model) for model in services.models]
        ends = {"first_id": cards[0]["id"], "last_id": cards[-1]["id"]}
        return Json({"data": cards, "has_more": False, **ends})
    return Json({"object": "list", "data": [_card_json(model, services) for model in services.models]})


async def get_model(request: Request, services: Services) -> Response:
    """Answer with a model, found by id or alias; with all models if the id is empty."""
    id = request.path_params["id"]
    if not id:
        return await list_models(request, services)
    for model in services.models:
        if model.is_called(id):
            anthropic = ANTHROPICS in request.headers
            return Json(_anthropic_card(model) if anthropic else _card_json(model, services))
    raise NotFoundError(f"The model `{id}` does not exist", param="model", code="model_not_found")


def _inputs(senses: Senses) -> list[str]:
    """Return what a model reads, in llama-server's words."""
    return ["text", *["image"] * senses.sees, *["audio"] * senses.hears]


def _card_json(model: ModelCard, services: Services) -> dict[str, Any]:
    return {
        "id": model.id,
        "object": "model",
        "created": model.created,
        "owned_by": "duo",
        "architecture": {
            "input_modalities": _inputs(services.senses if model is services.model else TEXT_ONLY),
            "output_modalities": ["text"],
        },
        "meta": {
            "n_ctx": model.n_ctx,
            "n_vocab": model.n_vocab,
            "n_params": model.n_params,
            "size": model.n_bytes,
            "quantization": model.quantization,
            "description": model.description,
            "note": model.note,
            "aliases": list(model.aliases),
            "draft": _drafting_now(services) if model is services.model else None,
        },
    }


def _anthropic_card(model: ModelCard) -> dict[str, Any]:
    return {
        "type": "model",
        "id": model.id,
        "display_name": model.id,
        "created_at": datetime.fromtimestamp(model.created, UTC).isoformat(),
        "lifecycle": "active",
        "max_input_tokens": model.n_ctx,
        "max_tokens": model.n_ctx,
    }


def _drafting_now(services: Services) -> dict[str, Any]:
    """Return the draft mode and the number of connected drafters that the server accepts."""
    health = services.health()
    accepted = [drafter for drafter in health.drafters if drafter.state == "accepted"]
    return {"mode": health.draft_mode, "drafters": len(accepted)}
