"""Types and labels of the metrics of GET /metrics, for the contract."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

METRICS: Mapping[tuple[str, Sequence[str]], Sequence[str]] = {
    ("counter", ()): (
        "duo:prompt_tokens",
        "duo:prompt_tokens_cached",
        "duo:prompt_seconds",
        "duo:tokens_predicted",
        "duo:tokens_predicted_seconds",
        "duo:steps",
        "duo:draft_tokens",
        "duo:draft_tokens_accepted",
        "duo:cache_loads",
        "duo:cache_lost",
        "duo:cache_files_skipped",
        "llamacpp:prompt_tokens",
        "llamacpp:prompt_tokens_cached",
        "llamacpp:prompt_seconds",
        "llamacpp:tokens_predicted",
        "llamacpp:tokens_predicted_seconds",
        "llamacpp:n_decode",
        "llamacpp:spec_decode_num_draft_tokens",
        "llamacpp:spec_decode_num_accepted_tokens",
        "llamacpp:spec_decode_num_drafts",
    ),
    ("counter", ("ending",)): ("duo:requests",),
    ("counter", ("drafter", "outcome")): (
        "duo:drafter_tokens",
        "duo:drafter_messages",
    ),
    ("gauge", ("tier",)): (
        "duo:cache_bytes",
        "duo:cache_conversations",
    ),
    ("gauge", ("state",)): ("duo:drafters_connected",),
    ("gauge", ()): (
        "duo:requests_processing",
        "duo:requests_deferred",
        "duo:slots",
        "duo:step_python_seconds",
        "duo:healthy",
        "llamacpp:n_tokens_max",
        "llamacpp:prompt_tokens_seconds",
        "llamacpp:predicted_tokens_seconds",
        "llamacpp:requests_processing",
        "llamacpp:requests_deferred",
        "llamacpp:n_busy_slots_per_decode",
        "llamacpp:kv_cache_tokens",
        "llamacpp:kv_cache_usage_ratio",
    ),
    ("counter", ("position",)): ("llamacpp:spec_decode_num_accepted_tokens_per_pos",),
}
"""Names of metrics, by type and labels."""


def as_extension() -> dict[str, dict[str, object]]:
    """Return the metrics in the format of the contract's extension `x-metrics`."""
    return {
        name: {"type": kind, "labels": list(labels)} if labels else {"type": kind}
        for (kind, labels), names in METRICS.items()
        for name in names
    }
