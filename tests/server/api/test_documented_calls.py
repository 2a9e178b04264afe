"""The calls that docs/api.md shows for replies that outlive their connection, run as they are written."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

from tests.http_lead import Lead

DOCUMENT = Path(__file__).parents[3] / "docs" / "api.md"
HERE = "http://127.0.0.1:5555"


def test_background_calls_do_what_is_documented(lead: Lead):
    [calls] = re.findall(r"```sh\n(duo=.*?)```", DOCUMENT.read_text(), re.DOTALL)
    assert HERE in calls
    asks, *lines = calls.replace(HERE, lead.url).rpartition("curl -s $duo/$id ")
    script = f"{asks}\n" + "\necho; echo ---\n".join("".join(lines).splitlines())
    told = subprocess.run(["bash", "-euc", script], capture_output=True, timeout=20, check=True).stdout
    status, stream, cancelled = told.split(b"\n---\n")
    assert json.loads(status)["status"] in ("queued", "in_progress", "completed")
    events = [json.loads(line[6:]) for line in stream.splitlines() if line.startswith(b"data: ")]
    assert events[0]["sequence_number"] == 3
    assert events[-1]["response"]["id"] == json.loads(status)["id"]
    assert json.loads(cancelled) == events[-1]["response"]  # it had ended
