"""A line for each request: what it was and what it cost, never what was said."""

from __future__ import annotations

import logging
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from server.api.access import Access
from server.api.middleware import Edge
from server.api.request_log import RequestLog
from server.errors import BackendError
from server.lead.listening import ClientPolicy
from server.llama.backend import Batch, Logits
from tests.fake_backend import FakeBackend, FakeModel
from tests.http_lead import Lead, serving
from tests.support import ENDLESS

SECRET = "a secret that no log may tell"
BODY: dict[str, Any] = {"messages": [{"role": "user", "content": SECRET}], "max_tokens": 7}


@contextmanager
def logged(
    log: RequestLog | None = None, backend: FakeBackend | None = None, keys: tuple[str, ...] = ()
) -> Generator[Lead]:
    edge = Edge(Access(keys), log=log or RequestLog(requests=True))
    toy = backend or FakeBackend(FakeModel(eog_rate=0.0))
    with serving(toy, door=ClientPolicy(edge, None, 0)) as lead:
        yield lead


@pytest.fixture
def records(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, "duo.requests")
    return caplog


def fields_of(caplog: pytest.LogCaptureFixture, n: int = 1) -> list[dict[str, Any]]:
    """Return the fields of n log lines; the last may come shortly after its reply."""
    return [vars(record)["fields"] for record in caplog.records if record.name == "duo.requests"][:n]


def post(lead: Lead, **fields: Any) -> httpx.Response:
    url, headers = f"{lead.url}/v1/chat/completions", {"x-request-id": "mine"}
    return httpx.post(url, json={**BODY, **fields}, headers=headers, timeout=20)


def until_logged(lead: Lead, caplog: pytest.LogCaptureFixture, n: int) -> list[dict[str, Any]]:
    lead.until(lambda _: len(fields_of(caplog, n)) == n)
    return fields_of(caplog, n)


@pytest.mark.parametrize("stream", [False, True])
def test_a_line_tells_what_a_request_cost(records: pytest.LogCaptureFixture, stream: bool):
    with logged() as lead:
        usage = post(lead).json()["usage"]
        lead.until_idle()
        post(lead, stream=stream)
        lead.until_idle()
        post(lead, n=2, stream=stream)
        first, second, both = until_logged(lead, records, 3)
    assert first["request_id"] == "mine"
    assert (first["method"], first["path"], first["status"]) == ("POST", "/v1/chat/completions", 200)
    assert first["ms"] >= first["first_ms"] > 0
    assert first["prompt_tokens"] == usage["prompt_tokens"]
    assert (first["cached_tokens"], first["completion_tokens"]) == (0, 7)
    assert (first["drafted_tokens"], first["accepted_tokens"]) == (0, 0)
    assert second["cached_tokens"] > 0
    assert both["completion_tokens"] == 14
    assert both["prompt_tokens"] == 2 * first["prompt_tokens"]
    assert SECRET not in records.text
    assert "key" not in first


def test_failures_are_logged_unlike_probes(records: pytest.LogCaptureFixture):
    with logged() as lead:
        for path in ("/health", "/ready", "/metrics"):
            assert httpx.get(lead.url + path).status_code == 200
        httpx.get(f"{lead.url}/no%0Asuch%1b[31mroute")
        [line] = until_logged(lead, records, 1)
    assert line["status"] == 404
    assert line["path"] == "/no%0Asuch%1B%5B31mroute"
    assert "prompt_tokens" not in line
    assert records.messages[-1].count("\n") == 0


def test_prompts_are_logged_on_request(records: pytest.LogCaptureFixture):
    with logged(RequestLog(requests=True, prompts=True)) as lead:
        post(lead)
        [line] = until_logged(lead, records, 1)
    assert SECRET in line["body"]
    records.clear()
    with logged(RequestLog()) as lead:
        post(lead)
        lead.until_idle()
    assert not fields_of(records)


def test_keys_are_told_apart_without_being_told(records: pytest.LogCaptureFixture):
    with logged(keys=("sk-anna", "sk-bert")) as lead:
        for key in ("sk-anna", "sk-bert", "sk-anna", "wrong"):
            httpx.get(f"{lead.url}/v1/models", headers={"Authorization": f"Bearer {key}"})
        lines = until_logged(lead, records, 4)
    anna, bert, again, wrong = lines
    assert anna["key"] == again["key"] != bert["key"]
    assert (wrong["status"], wrong.get("key")) == (401, None)
    assert "sk-" not in records.text


def test_left_client_is_logged_with_costs(records: pytest.LogCaptureFixture):
    backend = FakeBackend(FakeModel(eog_rate=0.0), n_ctx=ENDLESS, n_cells=ENDLESS, step_s=0.005)
    with logged(backend=backend) as lead:
        with httpx.stream(
            "POST", f"{lead.url}/v1/chat/completions", json={**BODY, "stream": True, "max_tokens": None}
        ) as running:
            text = running.iter_text()
            while '"content":"' not in next(text):
                pass
        [line] = until_logged(lead, records, 1)
        lead.until_idle()
    assert line["completion_tokens"] > 0


@pytest.mark.parametrize(
    ("error", "says"),
    [(BackendError("out of order"), "mine failed: out of order"), (ValueError("a bug"), "which ends mine")],
)
def test_failed_step_logs_its_requests(records: pytest.LogCaptureFixture, error: Exception, says: str):
    class Broken(FakeBackend):
        def decode(self, batch: Batch) -> Logits:
            raise error

    with logged(backend=Broken()) as lead:
        assert post(lead).status_code == 500
        lead.until_idle()
    assert says in records.text
