"""OpenAI's SDK for JavaScript, as installed with the agents."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.clients.real_agents import LISTED, SECONDS, installed
from tests.fake_backend import FakeBackend, FakeModel
from tests.http_lead import serving
from tests.support import ENDLESS


@pytest.mark.timeout(300)
def test_javascript_sdk_resumes_and_cancels(tmp_path: Path):
    (tmp_path / "node_modules").symlink_to(installed() / "node_modules")
    script = tmp_path / "openai_sdk.mjs"
    script.write_text((LISTED / script.name).read_text())
    backend = FakeBackend(FakeModel(eog_rate=0.0), n_ctx=ENDLESS, n_cells=ENDLESS, step_s=0.005)
    with serving(backend) as lead:
        ended = subprocess.run(
            ["node", str(script), f"{lead.url}/v1"],
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        assert ended.stdout, ended.stderr
        told = json.loads(ended.stdout)
        assert told == {"same": True, "follows": True, "status": "cancelled", "gone": 404}
        lead.until_idle()
