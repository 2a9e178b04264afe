"""What is counted from the engine's events, and how /metrics tells it."""

from __future__ import annotations

from dataclasses import replace

import httpx
import pytest
from prometheus_client import parser as text
from prometheus_client.openmetrics import parser as open_metrics
from prometheus_client.parser import text_string_to_metric_families

from server.api.services import DrafterHealth, Health
from server.api.traffic import MAX_SOURCES, Traffic
from server.cache.catalogue import TierCounts
from server.engine.events import Committed, DrafterCount, Event, Failed, Finished, Started, Stats
from server.errors import BackendError
from tests.http_lead import Lead
from tests.server.api.scripted import Call, Script, services

STATS = Stats(9, 4, 6, 2, 500.0, 2000.0, 5, 3, {"d": DrafterCount(4, 3), "e": DrafterCount(1, 0)})
ONE_REPLY: list[Event] = [
    Started(9, 4),
    Committed((1, 2), (None, None)),
    Committed((3, 4, 5, 6), ("d", "d", "d", None), 5, (8, 9)),
    Finished("stop", STATS),
]


def told(traffic: Traffic, *events: Event, id: int = 1) -> Traffic:
    for event in events:
        traffic(id, event)
    return traffic


async def scraped(
    traffic: Traffic, health: Health, cached: TierCounts | None = None
) -> dict[tuple[str, ...], float]:
    """Return every sample, keyed by its name and the values of its labels."""
    state = replace(services(Script(), health=health), traffic=traffic, cached=lambda: cached or TierCounts())
    one = Call(state, "/metrics", method="GET")
    await one.run()
    assert one.status == 200
    return {
        (sample.name.removeprefix("duo:"), *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(one.content.decode())
        for sample in family.samples
    }


async def test_a_reply_is_counted():
    samples = await scraped(told(Traffic(), *ONE_REPLY), Health("ok", 4, 1, 2, 125.0))
    expected = {
        ("prompt_tokens_total",): 5.0,
        ("prompt_tokens_cached_total",): 4.0,
        ("prompt_seconds_total",): 0.5,
        ("tokens_predicted_total",): 6.0,
        ("tokens_predicted_seconds_total",): 2.0,
        ("steps_total",): 2.0,
        ("requests_total", "stop"): 1.0,
        ("requests_total", "length"): 0.0,
        ("requests_total", "cancelled"): 0.0,
        ("requests_total", "failed"): 0.0,
        ("draft_tokens_total",): 5.0,
        ("draft_tokens_accepted_total",): 3.0,
        ("drafter_tokens_total", "d", "accepted"): 3.0,
        ("drafter_tokens_total", "d", "wasted"): 1.0,
        ("drafter_tokens_total", "e", "accepted"): 0.0,
        ("drafter_tokens_total", "e", "wasted"): 1.0,
        ("drafters_connected", "accepted"): 0.0,
        ("drafters_connected", "refused"): 0.0,
        ("requests_processing",): 1.0,
        ("requests_deferred",): 2.0,
        ("slots",): 4.0,
        ("step_python_seconds",): 0.000125,
        ("healthy",): 1.0,
        ("cache_bytes", "memory"): 0.0,
        ("cache_bytes", "disk"): 0.0,
        ("cache_conversations", "memory"): 0.0,
        ("cache_conversations", "disk"): 0.0,
        ("cache_loads_total",): 0.0,
        ("cache_lost_total",): 0.0,
        ("cache_files_skipped_total",): 0.0,
    }
    assert {key: value for key, value in samples.items() if not key[0].startswith("llamacpp:")} == expected


async def test_dashboards_of_llama_server_find_its_names():
    health = replace(Health("ok", 4, 1, 2, 125.0), n_decodes=8, n_decoding=12, cells=(25, 100))
    traffic = told(Traffic(), *ONE_REPLY)
    traffic.embedded(3)
    samples = await scraped(traffic, health)
    of_ours = {key: n for key, n in samples.items() if key[0].startswith("llamacpp:")}
    places = {key[1]: n for key, n in of_ours.items() if key[0].endswith("per_pos_total")}
    assert places == {"0": 1.0, "1": 1.0, "2": 1.0}
    found = {key[0].removeprefix("llamacpp:"): n for key, n in of_ours.items() if len(key) == 1}
    assert found == {
        "prompt_tokens_total": 8.0,
        "prompt_tokens_cached_total": 4.0,
        "prompt_seconds_total": 0.5,
        "tokens_predicted_total": 6.0,
        "tokens_predicted_seconds_total": 2.0,
        "n_decode_total": 9.0,
        "spec_decode_num_draft_tokens_total": 5.0,
        "spec_decode_num_accepted_tokens_total": 3.0,
        "spec_decode_num_drafts_total": 1.0,
        "n_tokens_max": 15.0,
        "prompt_tokens_seconds": 10.0,
        "predicted_tokens_seconds": 3.0,
        "requests_processing": 1.0,
        "requests_deferred": 2.0,
        "n_busy_slots_per_decode": 1.5,
        "kv_cache_tokens": 25.0,
        "kv_cache_usage_ratio": 0.25,
    }


async def test_lower_cache_tiers_are_counted():
    cached = TierCounts(memory_bytes=7, disk_snapshots=2, hits=3, skipped_files=1, failed_loads=1)
    samples = await scraped(Traffic(), Health("ok", 4, 1, 2, 125.0), cached)
    assert samples["cache_bytes", "memory"] == 7.0
    assert samples["cache_conversations", "disk"] == 2.0
    assert samples[("cache_loads_total",)] == 3.0
    assert samples[("cache_files_skipped_total",)] == 2.0


async def test_drafter_messages_count_by_outcome():
    counts = {"drafted": 9, "accepted": 5, "fresh": 7, "late": 2, "stale": 1}
    drafters = (
        DrafterHealth("d", "m", "accepted", None, counts),
        DrafterHealth('e"\\', "m", "refused", "vocabulary sizes differ", {"invalid": 3}),
    )
    samples = await scraped(Traffic(), Health("stuck", 4, 1, 2, 0.0, drafters))
    messages = {key[1:]: n for key, n in samples.items() if key[0] == "drafter_messages_total"}
    assert messages == {("d", "fresh"): 7, ("d", "late"): 2, ("d", "stale"): 1, ('e"\\', "invalid"): 3}
    assert samples[("drafters_connected", "accepted")] == samples[("drafters_connected", "refused")] == 1.0
    assert samples[("healthy",)] == 0.0


def test_tokens_count_at_once():
    traffic = told(Traffic(), *ONE_REPLY[:1])
    assert (traffic.n_prompt, traffic.n_predicted) == (0, 0)
    told(traffic, ONE_REPLY[1])
    assert (traffic.n_prompt, traffic.n_predicted, traffic.n_steps) == (5, 2, 1)
    told(traffic, *ONE_REPLY[2:])
    assert (traffic.n_prompt, traffic.n_predicted, traffic.n_steps) == (5, 6, 2)


def test_endings_without_a_token():
    traffic = told(Traffic(), Started(9, 4), Failed(BackendError("x")))
    told(traffic, Finished("cancelled", Stats(9, 0, 0, 0, 0.0, 0.0)), id=2)
    told(traffic, Started(9, 4), Finished("cancelled", Stats(9, 4, 0, 0, 0.0, 0.0)), id=3)
    assert traffic.endings == {"failed": 1, "cancelled": 2}
    assert traffic.n_prompt == 0


def test_gone_drafters_leave_metrics():
    traffic = Traffic()
    for i in range(2 * MAX_SOURCES):
        stats = replace(STATS, drafters={f"d{i}": DrafterCount(2, 1), "steady": DrafterCount(1, 1)})
        told(traffic, Finished("stop", stats), id=i)
    assert len(traffic.sources) == MAX_SOURCES
    assert traffic.sources["steady"] == DrafterCount(2 * MAX_SOURCES, 2 * MAX_SOURCES)


def test_a_live_lead_counts_what_it_replies(lead: Lead):
    def total(name: str) -> float:
        families = text_string_to_metric_families(httpx.get(f"{lead.url}/metrics").text)
        return next(s.value for f in families for s in f.samples if s.name == f"duo:{name}_total")

    before = total("tokens_predicted"), total("prompt_tokens"), total("prompt_tokens_cached")
    body = {"messages": [{"role": "user", "content": "count me"}], "max_tokens": 10}
    usage = httpx.post(f"{lead.url}/v1/chat/completions", json=body).json()["usage"]
    after = total("tokens_predicted"), total("prompt_tokens"), total("prompt_tokens_cached")
    grown = [now - then for now, then in zip(after, before, strict=True)]
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    assert grown == [usage["completion_tokens"], usage["prompt_tokens"] - cached, cached]


def test_openmetrics_for_those_who_accept_it(lead: Lead):
    accept = {"Accept": "application/openmetrics-text; version=1.0.0"}
    response = httpx.get(f"{lead.url}/metrics", headers=accept)
    assert response.headers["content-type"].startswith("application/openmetrics-text")
    families = open_metrics.text_string_to_metric_families(response.text)  # pyright: ignore
    assert any(family.name == "duo:tokens_predicted" for family in families)


PROMETHEUS_2 = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.1"
PROMETHEUS_3 = "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,*/*;q=0.2"


@pytest.mark.parametrize(
    ("accept", "content_type"),
    [
        ("application/openmetrics-text", "application/openmetrics-text; version=1.0.0; charset=utf-8"),
        (PROMETHEUS_2, "application/openmetrics-text; version=1.0.0; charset=utf-8; escaping=underscores"),
        (PROMETHEUS_3, "application/openmetrics-text; version=1.0.0; charset=utf-8; escaping=allow-utf-8"),
        (
            "application/openmetrics-text; version=1.0.0; escaping=values",
            "application/openmetrics-text; version=1.0.0; charset=utf-8; escaping=values",
        ),
        (
            "application/openmetrics-text; version=1.0.0; escaping=dots",
            "application/openmetrics-text; version=1.0.0; charset=utf-8; escaping=underscores",
        ),
        (
            "text/plain; version=1.0.0; escaping=underscores",
            "text/plain; version=1.0.0; charset=utf-8; escaping=underscores",
        ),
        ("text/plain; version=0.0.4; escaping=underscores", "text/plain; version=0.0.4; charset=utf-8"),
    ],
)
async def test_names_are_the_same_in_every_format(accept: str, content_type: str):
    one = Call(services(Script()), "/metrics", method="GET", headers={"accept": accept})
    await one.run()
    assert one.header["content-type"] == content_type
    parse = open_metrics if content_type.startswith("application") else text
    families = list(parse.text_string_to_metric_families(one.content.decode()))  # pyright: ignore
    names = {sample.name for family in families for sample in family.samples}
    assert {"duo:tokens_predicted_total", "llamacpp:requests_processing"} <= names
    assert all(name.startswith(("duo:", "llamacpp:")) for name in names)
    assert all(sample.name.startswith(family.name) for family in families for sample in family.samples)
