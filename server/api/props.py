"""GET /props: the server's model and defaults, in llama-server's shape."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from server.api.delivery import Json
from server.api.generation_settings import defaults_json
from server.api.served import Served
from server.text.detokenize import spelled


async def props(_: Request, served: Served) -> Response:
    """Answer with the properties; model_path is only the file's name."""
    health, vocabulary = served.health(), served.vocabulary
    body = {
        "default_generation_settings": {"n_ctx": served.model.n_ctx, "params": _default_params(served)},
        "total_slots": health.slots_total,
        "model_alias": served.model.id,
        "model_path": served.model.file,
        "modalities": {"vision": served.senses.sees, "audio": served.senses.hears, "video": False},
        "endpoint_slots": served.ask is not None,
        "endpoint_props": False,
        "endpoint_metrics": True,
        "chat_template": served.template.source,
        "bos_token": spelled(vocabulary, [vocabulary.bos]),
        "eos_token": spelled(vocabulary, [vocabulary.eos]),
        "build_info": f"duo {version('duo')}, llama-cpp-python {version('llama-cpp-python')}",
    }
    return Json(body)


def _default_params(served: Served) -> dict[str, Any]:
    """Return default parameters under the names of request fields."""
    n = -1 if served.max_tokens is None else served.max_tokens
    seed = -1 if served.seed is None else served.seed
    return {**defaults_json(served.defaults), "seed": seed, "max_tokens": n, "n_predict": n}
