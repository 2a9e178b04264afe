"""Report the settings of generated replies, under the names of request fields, as llama-server does."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Any

from server.api.generation_fields import GenerationFields
from server.api.sampling_fields import BREAKERS
from server.engine.request import GenerationRequest
from server.sampling.params import SamplingParams

OWN = ("dry_sequence_breakers", "logit_bias", "min_tokens", "banned_first", "pieces")
"""Parameters without a server default."""
OFF: dict[str, Any] = {"adaptive_target": -1.0, "adaptive_decay": 0.9, "min_keep": 0, "lora": []}
"""llama-server's parameters that duo lacks, with values that have no effect."""


def defaults_json(params: SamplingParams) -> dict[str, Any]:
    """Return sampling parameters under the names of request fields."""
    names = [field.name for field in fields(params) if field.name not in OWN]
    return {name: getattr(params, name) for name in names} | OFF


def slot_params_json(body: GenerationFields, n_predict: int) -> dict[str, Any]:
    """Return a request's parameters for GET /slots, without sampling parameters and texts.

    n_predict: Maximum tokens of the reply; -1: no limit.
    """
    return {
        "ignore_eos": bool(body.ignore_eos),
        "max_tokens": n_predict,
        "n_predict": n_predict,
        "n_keep": body.n_keep,
        "n_discard": 0,
        "n_probs": body.n_logprobs or 0,
        "stream": body.stream,
        "timings_per_token": body.timings_per_token,
        "post_sampling_probs": body.post_sampling_probs,
    }


def settings_json(body: GenerationFields, request: GenerationRequest) -> dict[str, Any]:
    """Return all settings of the reply to `request`, which `body` asked for."""
    n_predict = -1 if request.max_tokens is None else request.max_tokens
    breakers = BREAKERS if body.dry_sequence_breakers is None else body.dry_sequence_breakers
    return {
        **defaults_json(request.sampling),
        "dry_sequence_breakers": list(breakers),
        "logit_bias": [
            {"token": token, "bias": bias if math.isfinite(bias) else None}
            for token, bias in request.sampling.logit_bias
        ],
        "min_tokens": request.sampling.min_tokens,
        "ignore_eos": bool(body.ignore_eos),
        "stop": list(body.stops),
        "max_tokens": n_predict,
        "n_predict": n_predict,
        "n_keep": body.n_keep,
        "n_indent": body.n_indent,
        "n_probs": request.n_logprobs or 0,
        "grammar": body.grammar or "",
        "stream": body.stream,
        "timings_per_token": body.timings_per_token,
        "post_sampling_probs": body.post_sampling_probs,
    }
