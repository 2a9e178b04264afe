"""Write a reply in llama-server's own format."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from server.api.choices import Portion, ReplyChoice
from server.api.generation_fields import GenerationFields
from server.api.generation_settings import settings_json
from server.api.services import Services
from server.api.statistics import timings
from server.api.stopped import why_stopped
from server.engine.request import GenerationRequest
from server.text.detokenize import spelled


def native_result(
    services: Services, body: GenerationFields, request: GenerationRequest, choice: ReplyChoice
) -> dict[str, Any]:
    """Return the fields of an ended reply, except its content, tokens and probabilities.

    tokens_cached is the number of tokens in the KV cache, which lacks the last token and dropped tokens.
    truncated is true if the context was full or was shifted.
    """
    stats = choice.stats()
    stop_type, word = why_stopped(choice)
    full = stats.n_prompt + stats.n_predicted >= services.model.n_ctx
    return {
        "index": choice.index,
        "id_slot": choice.slot,
        "stop": True,
        "model": services.model.id,
        "tokens_predicted": stats.n_predicted,
        "tokens_evaluated": stats.n_prompt,
        "generation_settings": settings_json(body, request),
        "prompt": spelled(services.vocabulary, request.prompt),
        "has_new_line": "\n" in choice.message.content,
        "truncated": stats.truncated or (stop_type == "limit" and full),
        "stop_type": stop_type,
        "stopping_word": word,
        "tokens_cached": stats.n_prompt + stats.n_predicted - 1 - stats.n_dropped,
        "timings": timings(stats),
    }


def said(portion: Portion) -> dict[str, Any]:
    """Return content, tokens and probabilities of a portion."""
    told: dict[str, Any] = {"content": portion.text, "tokens": portion.tokens or []}
    if portion.logprobs is not None:
        told["completion_probabilities"] = probabilities(portion.logprobs["content"])
    return told


def probabilities(entries: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Convert OpenAI's logprobs to llama-server's format, in which `bytes` is [] instead of null."""
    tops = ("top_logprobs", "top_probs")
    return [
        {name: probabilities(value) if name in tops else value for name, value in entry.items()}
        | {"bytes": entry["bytes"] or []}
        for entry in entries
    ]


def picked(result: dict[str, Any], fields: Sequence[str]) -> dict[str, Any]:
    """Return those of the named fields that a result has; the name a/b is field b within field a."""
    found: dict[str, Any] = {}
    for field in fields:
        *outer, name = field.split("/")
        place: dict[str, Any] = result
        for key in outer:
            place = place[key] if isinstance(place.get(key), dict) else {}
        if name in place:
            found[field] = place[name]
    return found
