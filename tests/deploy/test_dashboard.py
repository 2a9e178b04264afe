"""deploy/grafana: a dashboard of metrics that duo has."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

from tests.http_lead import Lead

DASHBOARD = Path(__file__).parents[2] / "deploy" / "grafana" / "duo.json"


def test_panels_use_existing_metrics(lead: Lead):
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
    httpx.post(f"{lead.url}/v1/chat/completions", json=body).raise_for_status()
    families = list(text_string_to_metric_families(httpx.get(f"{lead.url}/metrics").text))
    told = {family.name for family in families} | {f"{family.name}_total" for family in families}
    panels: list[dict[str, Any]] = json.loads(DASHBOARD.read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels) == 12
    for panel in panels:
        for target in panel["targets"]:
            asked = set(re.findall(r"\b(?:duo|llamacpp):\w+", target["expr"]))
            assert asked, target
            assert asked <= told, f"{panel['title']}: {asked - told}"
            assert target["expr"].count("(") == target["expr"].count(")")
