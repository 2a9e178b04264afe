"""Several API keys at one queue: who floods it is refused, others are let in."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from server.api.access import Access
from server.api.middleware import Edge
from server.lead.listening import ClientPolicy
from tests.contract.contract import validate
from tests.fake_backend import FakeBackend, FakeModel
from tests.http_lead import Lead, serving
from tests.support import ENDLESS

ANNA, BERT, CARL = "sk-anna", "sk-bert", "sk-carl"
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}]},
    "/v1/completions": {"prompt": "hi"},
    "/v1/responses": {"input": "hi"},
    "/v1/messages": {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2},
    "/completion": {"prompt": "hi"},
    "/completions": {"prompt": "hi"},
    "/infill": {"input_prefix": "hi", "input_suffix": ""},
}
PATH = "/v1/chat/completions"
WAIT_S = 30
N_SLOTS, MAX_QUEUED = 1, 8


class Crowd:
    """Requests for endless replies, whose clients stay."""

    def __init__(self, lead: Lead, stack: ExitStack) -> None:
        self._lead = lead
        self._stack = stack

    def join(self, key: str, n: int) -> None:
        """Send n more requests of the key, all of which are admitted."""
        parts, body = urlsplit(self._lead.url), json.dumps(BODIES[PATH]).encode()
        head = f"POST {PATH} HTTP/1.1\r\nHost: duo\r\nAuthorization: Bearer {key}\r\n"
        for n_live in range(self._lead.thread.n_live, self._lead.thread.n_live + n):
            link = self._stack.enter_context(socket.create_connection((parts.hostname, parts.port), WAIT_S))
            link.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            self._lead.until(lambda _, n_live=n_live: self._lead.thread.n_live == n_live + 1)


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


@pytest.fixture
def lead() -> Iterator[Lead]:
    backend = FakeBackend(FakeModel(eog_rate=0.0), n_ctx=ENDLESS, n_cells=ENDLESS, step_s=0.005)
    door = ClientPolicy(Edge(access=Access([ANNA, BERT, CARL])), None, 0)
    with serving(backend, n_slots=N_SLOTS, max_queued=MAX_QUEUED, door=door) as one:
        yield one


@pytest.fixture
def crowd(lead: Lead) -> Iterator[Crowd]:
    with ExitStack() as stack:
        yield Crowd(lead, stack)


def refusal(lead: Lead, key: str, path: str = PATH, **more: Any) -> httpx.Response:
    response = httpx.post(lead.url + path, headers=bearer(key), timeout=WAIT_S, **more)
    assert response.status_code == 429, response.text
    assert int(response.headers["retry-after"]) >= 1
    return response


def test_flooding_key_spares_others(lead: Lead, crowd: Crowd):
    crowd.join(ANNA, MAX_QUEUED // 2)
    error = refusal(lead, ANNA, json=BODIES[PATH]).json()["error"]
    assert error["type"] == "rate_limit_error"
    assert "this API key" in error["message"]
    crowd.join(BERT, 2)
    crowd.join(CARL, 1)
    assert lead.thread.places.held.total() == lead.thread.n_live == MAX_QUEUED - 1


def test_leaving_clients_free_their_places(lead: Lead):
    for _ in range(2):
        with ExitStack() as stack:
            Crowd(lead, stack).join(ANNA, MAX_QUEUED // 2)
            refusal(lead, ANNA, json=BODIES[PATH])
        lead.until(lambda _: not lead.thread.places.n_taken)


@pytest.mark.parametrize("path", BODIES)
def test_full_queue_refuses_before_body(lead: Lead, crowd: Crowd, path: str):
    crowd.join(ANNA, MAX_QUEUED // 2)
    error = refusal(lead, ANNA, path, content=b"no JSON at all").json()
    validate("MessagesError" if "messages" in path else "Error", error)
    wrong = httpx.post(lead.url + path, headers=bearer(BERT), content=b"no JSON at all", timeout=WAIT_S)
    assert wrong.status_code in (400, 501), "its body was looked at, or that the toy cannot infill"
    assert lead.thread.places.held[BERT] == 0


def test_refused_request_frees_its_place(lead: Lead):
    for path, body in BODIES.items():
        for wrong in ({}, {**body, "seed": "no number", "max_tokens": "none"}):
            httpx.post(lead.url + path, headers=bearer(ANNA), json=wrong, timeout=WAIT_S)
    lead.until(lambda _: not lead.thread.places.n_taken)
