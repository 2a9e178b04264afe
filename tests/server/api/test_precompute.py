"""POST /v1/precompute gives way to replies, and is no traffic."""

from __future__ import annotations

import contextlib
from concurrent.futures import ThreadPoolExecutor

import httpx

from tests.fake_backend import FakeBackend, FakeModel
from tests.gated import Gated
from tests.http_lead import Lead, serving
from tests.server.api.test_cancellation import Scene
from tests.support import ENDLESS

TYPED = {"messages": [{"role": "user", "content": "I have a question about " + "things " * 20}]}


def precompute(lead: Lead) -> httpx.Response:
    return httpx.post(f"{lead.url}/v1/precompute", json=TYPED, timeout=30)


def test_precompute_yields_to_a_reply():
    backend = Gated(FakeModel(eog_rate=0.0), n_ctx=ENDLESS, n_cells=2 * ENDLESS)
    links = contextlib.ExitStack()
    with serving(backend, n_slots=2) as lead, ThreadPoolExecutor(1) as on_prompt_thread, backend, links:
        with Scene(lead, backend, links).ask(stream=True):
            asked, step = on_prompt_thread.submit(precompute, lead), 0
            while not asked.done():
                step += 1
                backend.until_step(step)
                backend.allow(1)
            assert asked.result().status_code == 200
            assert asked.result().json()["completed"] is False
            assert asked.result().json()["prompt_tokens"] > len("things ") * 20
            assert lead.thread.engine.n_active == 1


def test_precompute_counts_in_no_metric():
    with serving(FakeBackend()) as lead:
        assert precompute(lead).json()["completed"]
        assert not lead.services.traffic.endings
        assert lead.services.traffic.prompt_s == 0.0
