"""GET /props: what this server is and what it does by default, as llama-server tells it."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response

from server.api.served import Served
from server.llama.backend import Vocabulary


async def props(request: Request) -> Response:
    """What requests get that do not say otherwise, and the model; of paths, the file's name only."""
    served: Served = request.state.served
    health = served.health()
    body = {
        "default_generation_settings": {"n_ctx": served.model.n_ctx, "params": _params(served)},
        "total_slots": health.slots_total,
        "model_alias": served.model.id,
        "model_path": served.model.file,
        "modalities": {"vision": False, "audio": False},
        "endpoint_slots": served.ask is not None,
        "endpoint_props": False,
        "endpoint_metrics": True,
        "chat_template": served.template.source,
        "bos_token": _text(served.vocabulary, served.vocabulary.bos),
        "eos_token": _text(served.vocabulary, served.vocabulary.eos),
        "build_info": f"duo {version('duo')}, llama-cpp-python {version('llama-cpp-python')}",
    }
    return Response(orjson.dumps(body), media_type="application/json")


def _params(served: Served) -> dict[str, Any]:
    """By the names that requests have for them."""
    defaults = served.defaults
    return {
        "seed": -1 if served.seed is None else served.seed,
        "max_tokens": -1 if served.max_tokens is None else served.max_tokens,
        "temperature": defaults.temperature,
        "dynatemp_range": defaults.dynatemp_range,
        "dynatemp_exponent": defaults.dynatemp_exponent,
        "top_k": defaults.top_k,
        "top_p": defaults.top_p,
        "min_p": defaults.min_p,
        "top_n_sigma": defaults.top_n_sigma,
        "typical_p": defaults.typical_p,
        "xtc_probability": defaults.xtc_probability,
        "xtc_threshold": defaults.xtc_threshold,
        "repeat_last_n": defaults.repeat_last_n,
        "repeat_penalty": defaults.repeat_penalty,
        "presence_penalty": defaults.presence_penalty,
        "frequency_penalty": defaults.frequency_penalty,
        "dry_multiplier": defaults.dry_multiplier,
        "dry_base": defaults.dry_base,
        "dry_allowed_length": defaults.dry_allowed_length,
        "dry_penalty_last_n": defaults.dry_penalty_last_n,
        "mirostat": defaults.mirostat,
        "mirostat_tau": defaults.mirostat_tau,
        "mirostat_eta": defaults.mirostat_eta,
        "samplers": list(defaults.samplers),
    }


def _text(vocabulary: Vocabulary, token: int | None) -> str:
    return "" if token is None else vocabulary.piece(token, special=True).decode(errors="replace")
