"""The JSON of chat completions: objects, chunks, usage, timings."""

from __future__ import annotations

from typing import Any

import orjson

from server.engine.events import Stats

DONE = b"data: [DONE]\n\n"


def event(payload: Any) -> bytes:
    """One server-sent event."""
    return b"data: " + orjson.dumps(payload) + b"\n\n"


class ChunkWriter:
    """The chunks of one streamed reply. What is constant is serialised once."""

    def __init__(self, id: str, created: int, model: str, fingerprint: str, *, usage: bool) -> None:
        """usage: every chunk but the last carries "usage": null, as OpenAI does when it is asked for."""
        self._base: dict[str, Any] = {
            "id": id,
            "object": "chat.completion.chunk",
            "created": created,
            "model": model,
            "system_fingerprint": fingerprint,
        }
        if usage:
            self._base["usage"] = None
        head, tail = orjson.dumps({**self._base, "choices": [_choice({"content": "\x00"}, None)]}).split(
            b'"\\u0000"'
        )
        self._head, self._tail = b"data: " + head, tail + b"\n\n"

    def role(self) -> bytes:
        return event({**self._base, "choices": [_choice({"role": "assistant", "content": None}, None)]})

    def text(self, text: str) -> bytes:
        return self._head + orjson.dumps(text) + self._tail

    def finish(self, reason: str, extra: dict[str, Any]) -> bytes:
        return event({**self._base, "choices": [_choice({}, reason)], **extra})

    def usage(self, stats: Stats) -> bytes:
        return event({**self._base, "choices": [], "usage": usage(stats)})


def _choice(delta: dict[str, Any], reason: str | None) -> dict[str, Any]:
    return {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}


def usage(stats: Stats) -> dict[str, Any]:
    """OpenAI's usage object."""
    return {
        "prompt_tokens": stats.n_prompt,
        "completion_tokens": stats.n_predicted,
        "total_tokens": stats.n_prompt + stats.n_predicted,
        "prompt_tokens_details": {"cached_tokens": stats.n_cached},
        "completion_tokens_details": {
            "reasoning_tokens": 0,
            "accepted_prediction_tokens": stats.n_accepted,
            "rejected_prediction_tokens": stats.n_drafted - stats.n_accepted,
        },
    }


def measured(stats: Stats) -> dict[str, Any]:
    """timings, named as llama-server names them, and metrics, as vLLM names them."""
    n_evaluated = stats.n_prompt - stats.n_cached
    timings = {
        "cache_n": stats.n_cached,
        "prompt_n": n_evaluated,
        **_rates("prompt", n_evaluated, stats.prompt_ms),
        "predicted_n": stats.n_predicted,
        **_rates("predicted", stats.n_predicted - 1, stats.predicted_ms),
        "draft_n": stats.n_drafted,
        "draft_n_accepted": stats.n_accepted,
    }
    speculative = {
        "num_draft_tokens": stats.n_drafted,
        "num_accepted_draft_tokens": stats.n_accepted,
        "draft_acceptance_rate": stats.n_accepted / stats.n_drafted if stats.n_drafted else 0.0,
        "mean_acceptance_length": stats.n_predicted / stats.n_steps if stats.n_steps else 0.0,
        "drafters": {
            name: {"num_draft_tokens": count.drafted, "num_accepted_draft_tokens": count.accepted}
            for name, count in stats.drafters.items()
        },
    }
    return {"timings": timings, "metrics": {"speculative_decoding": speculative}}


def _rates(what: str, n: int, ms: float) -> dict[str, float]:
    return {
        f"{what}_ms": ms,
        f"{what}_per_token_ms": ms / n if n > 0 else 0.0,
        f"{what}_per_second": n / ms * 1e3 if ms > 0 and n > 0 else 0.0,
    }
