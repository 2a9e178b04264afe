"""GET /props: the server's model and defaults, in llama-server's shape."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from server.api.delivery import Json
from server.api.generation_settings import defaults_json
from server.api.services import Services
from server.text.detokenize import spelled


async def props(_: Request, services: Services) -> Response:
    """Answer with the properties; model_path has only the file's name."""
    health, vocabulary = services.health(), services.vocabulary
    body = {
        "default_generation_settings": {"n_ctx": services.model.n_ctx, "params": _default_params(services)},
        "total_slots": health.slots_total,
        "model_alias": services.model.id,
        "model_path": services.model.file,
        "modalities": {"vision": services.senses.sees, "audio": services.senses.hears, "video": False},
        "endpoint_slots": services.ask is not None,
        "endpoint_props": False,
        "endpoint_metrics": True,
        "chat_template": services.template.source,
        "bos_token": spelled(vocabulary, [vocabulary.bos]),
        "eos_token": spelled(vocabulary, [vocabulary.eos]),
        "build_info": f"duo {version('duo')}, llama-cpp-python {version('llama-cpp-python')}",
    }
    return Json(body)


def _default_params(services: Services) -> dict[str, Any]:
    """Return default parameters under the names of request fields."""
    n = -1 if services.max_tokens is None else services.max_tokens
    seed = -1 if services.seed is None else services.seed
    return {**defaults_json(services.defaults), "seed": seed, "max_tokens": n, "n_predict": n}
