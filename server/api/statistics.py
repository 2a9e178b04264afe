"""Report the cost of a reply: usage as in OpenAI, timings as in llama-server, metrics as in vLLM."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import Any

from server.engine.events import DrafterCount, Stats


def combined(all_stats: Sequence[Stats]) -> Stats:
    """Combine the stats of several replies to one prompt as if they were one request.

    The prompt counts once, with the cached tokens of the first reply. Tokens and steps are summed; times are
    the maximum.
    """
    drafters: dict[str, DrafterCount] = {}
    for name, count in (item for stats in all_stats for item in stats.drafters.items()):
        drafters[name] = drafters.get(name, DrafterCount()) + count
    columns = zip_longest(*(stats.accepted_per_step for stats in all_stats), fillvalue=0)
    return replace(
        all_stats[0],
        n_predicted=sum(stats.n_predicted for stats in all_stats),
        n_steps=sum(stats.n_steps for stats in all_stats),
        predicted_ms=max(stats.predicted_ms for stats in all_stats),
        undrafted_ms=max(stats.undrafted_ms for stats in all_stats),
        n_drafted=sum(stats.n_drafted for stats in all_stats),
        n_accepted=sum(stats.n_accepted for stats in all_stats),
        drafters=drafters,
        accepted_per_step=tuple(map(sum, columns)),
        truncated=any(stats.truncated for stats in all_stats),
    )


def summed(all_stats: Sequence[Stats]) -> Stats:
    """Combine the stats of replies to different prompts: like combined(), but prompt tokens are summed."""
    return replace(
        combined(all_stats),
        n_prompt=sum(stats.n_prompt for stats in all_stats),
        n_cached=sum(stats.n_cached for stats in all_stats),
        prompt_ms=max(stats.prompt_ms for stats in all_stats),
    )


def usage(stats: Stats, n_reasoning: int = 0) -> dict[str, Any]:
    """Return OpenAI's usage object; n_reasoning is the number of tokens of thoughts."""
    return {
        "prompt_tokens": stats.n_prompt,
        "completion_tokens": stats.n_predicted,
        "total_tokens": stats.n_prompt + stats.n_predicted,
        "prompt_tokens_details": {"cached_tokens": stats.n_cached},
        "completion_tokens_details": {
            "reasoning_tokens": n_reasoning,
            "accepted_prediction_tokens": stats.n_accepted,
            "rejected_prediction_tokens": stats.n_drafted - stats.n_accepted,
        },
    }


def evaluating(progress: Mapping[str, Any]) -> Stats:
    """Return the stats of a reply whose prompt is being evaluated, from a chunk's progress."""
    return Stats(progress["processed"], progress["cache"], 0, 0, progress["time_ms"], 0.0)


def measured(stats: Stats, n_choices: int = 1) -> dict[str, Any]:
    """Return the timings and metrics of n_choices replies together."""
    metrics = {"speculative_decoding": _draft_metrics(stats), "truncated": stats.truncated}
    return {"timings": timings(stats, n_choices), "metrics": metrics}


def timings(stats: Stats, n_choices: int = 1) -> dict[str, Any]:
    """Return llama-server's timings of n_choices replies together.

    Decoding rates exclude the first token of each reply, whose time belongs to the prompt.
    undrafted_per_second is an estimate; it is included only if tokens were drafted.
    """
    n_evaluated, n_decoded = stats.n_prompt - stats.n_cached, stats.n_predicted - n_choices
    drafted = stats.n_drafted and stats.undrafted_ms
    estimate = {"undrafted_per_second": n_decoded / stats.undrafted_ms * 1e3} if drafted else {}
    return {
        "cache_n": stats.n_cached,
        "prompt_n": n_evaluated,
        **_rate_fields("prompt", n_evaluated, stats.prompt_ms),
        "predicted_n": stats.n_predicted,
        **_rate_fields("predicted", n_decoded, stats.predicted_ms),
        **estimate,
        "draft_n": stats.n_drafted,
        "draft_n_accepted": stats.n_accepted,
    }


def _draft_metrics(stats: Stats) -> dict[str, Any]:
    """Return metrics as in vLLM; mean_acceptance_length includes the model's own token of each step."""
    n_drafts = sum(stats.accepted_per_step)
    return {
        "num_drafts": n_drafts,
        **shares(DrafterCount(stats.n_drafted, stats.n_accepted)),
        "mean_acceptance_length": 1.0 + stats.n_accepted / n_drafts if n_drafts else 1.0,
        "acceptance_histogram": list(stats.accepted_per_step),
        "drafters": {name: shares(count) for name, count in stats.drafters.items()},
    }


def shares(count: DrafterCount) -> dict[str, Any]:
    """Return drafted and accepted token counts under vLLM's names."""
    return {
        "num_draft_tokens": count.drafted,
        "num_accepted_draft_tokens": count.accepted,
        "draft_acceptance_rate": count.accepted / count.drafted if count.drafted else 0.0,
    }


def _rate_fields(what: str, n: int, ms: float) -> dict[str, float]:
    return {
        f"{what}_ms": ms,
        f"{what}_per_token_ms": ms / n if n > 0 else 0.0,
        f"{what}_per_second": n / ms * 1e3 if ms > 0 and n > 0 else 0.0,
    }
