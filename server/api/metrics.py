"""GET /metrics in Prometheus' text formats. Metrics of llama-server appear again under its own names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.openmetrics.exposition import ALLOWUTF8, DOTS, UNDERSCORES
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import Response

from server.api.services import TOKEN_COUNTS, DrafterHealth, Health, Services
from server.api.traffic import Traffic
from server.cache.catalogue import TierCounts
from server.errors import NotSupportedError


async def metrics(request: Request, services: Services) -> Response:
    if "metrics" in services.hidden:
        raise NotSupportedError("this server has no metrics: start it without --no-metrics")
    chosen: tuple[Callable[..., bytes], str] = choose_encoder(request.headers.get("accept", ""))
    encode, content_type = chosen
    began = {"Process-Start-Time-Unix": str(services.model.created)}
    # Escaping is switched off: no name needs it, since colons are valid. The library would escape colons in
    # samples of OpenMetrics and, if the client asks for escaping=dots, write `_` as `__`.
    body = encode(_AllMetrics(services), escaping=ALLOWUTF8)
    media_type = content_type.replace(f"escaping={DOTS}", f"escaping={UNDERSCORES}")
    return Response(body, headers=began, media_type=media_type)


class _AllMetrics(Collector):
    def __init__(self, services: Services) -> None:
        self._services = services

    def collect(self) -> Iterator[Metric]:
        traffic, health = self._services.traffic, self._services.state()
        yield from _token_metrics(traffic)
        yield from _draft_metrics(traffic)
        yield from _drafter_messages(health.drafters)
        yield from _load_metrics(health)
        yield from _cache_metrics(self._services.cached())
        yield from _as_llama_server(traffic, health)


def _token_metrics(traffic: Traffic) -> Iterator[Metric]:
    yield _as_counter("prompt_tokens", "Prompt tokens evaluated.", traffic.n_prompt)
    yield _as_counter("prompt_tokens_cached", "Prompt tokens reused from the KV cache.", traffic.n_cached)
    yield _as_counter(
        "prompt_seconds", "Time from admission to the first token, ended requests.", traffic.prompt_s
    )
    yield _as_counter("tokens_predicted", "Tokens generated.", traffic.n_predicted)
    yield _as_counter(
        "tokens_predicted_seconds",
        "Time from the first token to the last, ended requests.",
        traffic.predicted_s,
    )
    yield _as_counter(
        "steps", "Steps that generated tokens, counted for each request in them.", traffic.n_steps
    )
    requests = CounterMetricFamily("duo:requests", "Generations ended, by how.", labels=["ending"])
    for ending in ("stop", "length", "cancelled", "failed"):
        requests.add_metric([ending], traffic.endings[ending])
    yield requests


def _draft_metrics(traffic: Traffic) -> Iterator[Metric]:
    yield _as_counter("draft_tokens", "Drafted tokens verified.", traffic.n_drafted)
    yield _as_counter("draft_tokens_accepted", "Drafted tokens that were right.", traffic.n_accepted)
    tokens = CounterMetricFamily(
        "duo:drafter_tokens",
        "Drafted tokens verified for ended requests, by who drafted them and what became of them.",
        labels=["drafter", "outcome"],
    )
    for name, count in traffic.sources.items():
        tokens.add_metric([name, "accepted"], count.accepted)
        tokens.add_metric([name, "wasted"], count.drafted - count.accepted)
    yield tokens


def _drafter_messages(drafters: Iterable[DrafterHealth]) -> Iterator[Metric]:
    messages = CounterMetricFamily(
        "duo:drafter_messages",
        "Messages of the drafters that are connected, by what became of them.",
        labels=["drafter", "outcome"],
    )
    connected = GaugeMetricFamily(
        "duo:drafters_connected", "Drafters on the bus, by whether they are used.", labels=["state"]
    )
    states = {"accepted": 0, "refused": 0}
    for drafter in drafters:
        states[drafter.state] += 1
        for outcome, n in drafter.counts.items():
            if outcome not in TOKEN_COUNTS:
                messages.add_metric([drafter.id, outcome], n)
    for state, n in states.items():
        connected.add_metric([state], n)
    yield messages
    yield connected


def _load_metrics(health: Health) -> Iterator[Metric]:
    yield _as_gauge("requests_processing", "Requests that have a slot.", health.slots_busy)
    yield _as_gauge("requests_deferred", "Requests waiting for a slot.", health.queued)
    yield _as_gauge("slots", "Replies that can be generated at once.", health.slots_total)
    yield _as_gauge(
        "step_python_seconds",
        "Median time outside llama_decode in recent one-session steps.",
        health.step_python_us / 1e6,
    )
    yield _as_gauge("healthy", "1 unless the server is loading or stuck.", float(health.status == "ok"))


def _cache_metrics(cached: TierCounts) -> Iterator[Metric]:
    held = {
        "bytes": ("Bytes of saved conversations.", cached.memory_bytes, cached.disk_bytes),
        "conversations": ("Saved conversations.", cached.memory_snapshots, cached.disk_snapshots),
    }
    for name, (what, in_memory, on_disk) in held.items():
        family = GaugeMetricFamily(f"duo:cache_{name}", what, labels=["tier"])
        family.add_metric(["memory"], in_memory)
        family.add_metric(["disk"], on_disk)
        yield family
    yield _as_counter("cache_loads", "Conversations that came back into the KV cache.", cached.hits)
    yield _as_counter("cache_lost", "Conversations that no tier had room for.", cached.lost)
    skipped = cached.skipped_files + cached.failed_loads
    yield _as_counter("cache_files_skipped", "Files that could not be used.", skipped)


def _as_llama_server(traffic: Traffic, health: Health) -> Iterator[Metric]:
    """Yield metrics under llama-server's names, for its dashboards.

    The names with kv_cache are of its earlier versions. Rates are means over all ended requests.
    """
    counters = {
        "prompt_tokens": ("Prompt tokens evaluated.", traffic.n_prompt + traffic.n_embedded),
        "prompt_tokens_cached": ("Prompt tokens reused from the KV cache.", traffic.n_cached),
        "prompt_seconds": ("Time spent on prompts.", traffic.prompt_s),
        "tokens_predicted": ("Tokens generated.", traffic.n_predicted),
        "tokens_predicted_seconds": ("Time spent generating.", traffic.predicted_s),
        "n_decode": ("Decodes of the model.", health.n_decodes + traffic.n_embeddings),
        "spec_decode_num_draft_tokens": ("Drafted tokens verified.", traffic.n_drafted),
        "spec_decode_num_accepted_tokens": ("Drafted tokens that were right.", traffic.n_accepted),
        "spec_decode_num_drafts": ("Steps with drafts.", traffic.n_drafting),
    }
    gauges = {
        "n_tokens_max": ("Most tokens of a prompt with its reply.", traffic.n_longest),
        "prompt_tokens_seconds": ("Prompt tokens a second.", _rate_of(traffic.n_prompt, traffic.prompt_s)),
        "predicted_tokens_seconds": (
            "Tokens generated a second.",
            _rate_of(traffic.n_predicted, traffic.predicted_s),
        ),
        "requests_processing": ("Requests that have a slot.", health.slots_busy),
        "requests_deferred": ("Requests waiting for a slot.", health.queued),
        "n_busy_slots_per_decode": ("Requests in a decode.", _rate_of(health.n_decoding, health.n_decodes)),
        "kv_cache_tokens": ("Cells of the KV cache in use.", health.cells[0]),
        "kv_cache_usage_ratio": ("Their share of all.", _rate_of(*health.cells)),
    }
    for name, (what, value) in counters.items():
        yield CounterMetricFamily(f"llamacpp:{name}", what, value=value)
    for name, (what, value) in gauges.items():
        yield GaugeMetricFamily(f"llamacpp:{name}", what, value=value)
    places = CounterMetricFamily(
        "llamacpp:spec_decode_num_accepted_tokens_per_pos",
        "Drafted tokens that were right, by their place in a step.",
        labels=["position"],
    )
    for place, n in sorted(traffic.accepted_at.items()):
        places.add_metric([str(place)], n)
    yield places


def _rate_of(n: float, of: float) -> float:
    return n / of if of else 0.0


def _as_counter(name: str, what: str, value: float) -> Metric:
    return CounterMetricFamily(f"duo:{name}", what, value=value)


def _as_gauge(name: str, what: str, value: float) -> Metric:
    return GaugeMetricFamily(f"duo:{name}", what, value=value)
