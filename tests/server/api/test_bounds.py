"""What a request may take of the server, and what becomes of requests when it ends."""

from __future__ import annotations

import itertools
import json
import re
import socket
import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from server.api.middleware import Edge
from server.engine.engine import Engine
from server.engine.events import Committed, Event, Failed, Finished
from server.engine.live_generation import LiveGeneration
from server.engine.proposer import NoProposer
from server.engine.request import GenerationRequest
from server.engine.scheduler import Limits
from server.engine.thread import Bounds, EngineThread
from server.errors import BusyError, InvalidRequestError, LostModelError
from server.lead.listening import ClientPolicy
from server.sampling.constraint import Constraint
from tests.checks import check_engine
from tests.contract.contract import validate
from tests.fake_backend import FakeBackend, FakeModel
from tests.gated import ENOUGH, Gated
from tests.http_lead import Lead, serving
from tests.support import ENDLESS, until

HELLO = [{"role": "user", "content": "hello"}]


@contextmanager
def bounded(bounds: Bounds | None = None, *, grace_s: float = 0, **edge: Any) -> Generator[Lead]:
    """Yield a lead whose replies never end by themselves, at 5 ms a token."""
    backend = FakeBackend(FakeModel(eog_rate=0.0), n_ctx=ENDLESS, n_cells=ENDLESS, step_s=0.005)
    with serving(backend, n_slots=1, door=ClientPolicy(Edge(**edge), None, grace_s), bounds=bounds) as lead:
        yield lead


def post(lead: Lead, **body: Any) -> httpx.Response:
    return httpx.post(f"{lead.url}/v1/chat/completions", json={"messages": HELLO, **body}, timeout=20)


def error_of(response: httpx.Response) -> dict[str, Any]:
    validate("Error", response.json())
    return response.json()["error"]


def chunks_of(response: httpx.Response) -> list[Any]:
    payloads = [line.removeprefix("data: ") for line in response.text.splitlines() if line.startswith("data")]
    return [payload if payload == "[DONE]" else json.loads(payload) for payload in payloads]


@pytest.mark.parametrize(
    ("most", "n_ctx", "reason"), [(20, 4096, "max_tokens"), (None, 256, "model_context_window_exceeded")]
)
def test_anthropic_hears_which_limit_ends(most: int | None, n_ctx: int, reason: str):
    """Clients compact a conversation whose context is said to be full."""
    backend = FakeBackend(FakeModel(eog_rate=0.0), n_ctx=n_ctx)
    with serving(backend, bounds=Bounds(max_tokens=most)) as lead:
        body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 32_000}
        assert httpx.post(f"{lead.url}/v1/messages", json=body).json()["stop_reason"] == reason


def test_max_tokens_of_server_cuts_reply():
    with bounded(Bounds(max_tokens=5)) as lead:
        for asked, given in (({}, 5), ({"max_tokens": 9}, 5), ({"max_tokens": 3}, 3)):
            body = post(lead, **asked).json()
            assert body["usage"]["completion_tokens"] == given
            assert body["choices"][0]["finish_reason"] == "length"


def test_slow_reply_is_unretriable_504():
    with bounded(Bounds(time_s=0.1)) as lead:
        response = post(lead)
        assert response.status_code == 504
        assert error_of(response)["code"] == "request_timeout"
        assert response.headers["x-should-retry"] == "false"
        lead.until_idle()


def test_slow_stream_ends_with_error(monkeypatch: pytest.MonkeyPatch):
    expire_in = LiveGeneration.expire_in

    def after_a_token(self: LiveGeneration, seconds: float) -> None:
        deliver = self.deliver

        def delivered(event: Event) -> None:
            deliver(event)
            if isinstance(event, Committed):
                self.deliver = deliver
                expire_in(self, seconds)

        self.deliver = delivered

    monkeypatch.setattr(LiveGeneration, "expire_in", after_a_token)
    with bounded(Bounds(time_s=0.05)) as lead:
        response = post(lead, stream=True)
        assert response.status_code == 200
        *chunks, last = chunks_of(response)
        validate("Error", last)
        assert last["error"]["code"] == "request_timeout"
        assert any(chunk["choices"][0]["delta"].get("content") for chunk in chunks)
        lead.until_idle()


def test_waiting_for_a_slot_counts():
    with bounded(Bounds(time_s=0.3)) as lead:
        replies: list[httpx.Response] = []
        threads = [threading.Thread(target=lambda: replies.append(post(lead))) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [reply.status_code for reply in replies] == [504, 504]
        lead.until_idle()


def test_time_limit_works_without_engine():
    held = threading.Event()
    with bounded(Bounds(time_s=0.1)) as lead:

        def hold(_: Engine) -> None:
            held.wait(20)

        lead.thread.command(hold)
        try:
            assert post(lead).status_code == 504
        finally:
            held.set()
        lead.until_idle()


def test_large_body_is_413():
    with bounded(max_body=1000) as lead:
        assert post(lead, max_tokens=1).status_code == 200
        response = post(lead, max_tokens=1, user="x" * 1000)
        assert response.status_code == 413
        assert "1000 bytes" in error_of(response)["message"]

        def pieces() -> Iterator[bytes]:
            yield from [b"x" * 100] * 11

        chunked = httpx.post(f"{lead.url}/v1/chat/completions", content=pieces(), timeout=20)
        assert chunked.status_code == 413


def test_missing_body_is_408():
    with bounded(body_s=0.1) as lead:
        parts = urlsplit(lead.url)
        with socket.create_connection((parts.hostname, parts.port), timeout=20) as link:
            link.sendall(b'POST /v1/chat/completions HTTP/1.1\r\nHost: duo\r\nContent-Length: 50\r\n\r\n{"me')
            answer = link.recv(100_000)
        assert answer.startswith(b"HTTP/1.1 408 ")
        with socket.create_connection((parts.hostname, parts.port), timeout=20) as link:
            link.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: duo\r\nContent-Length: 2\r\n\r\n{}")
            assert link.recv(100_000).startswith(b"HTTP/1.1 400 "), "a body that is there is not hurried"


def test_only_listed_origins_are_let_in():
    with bounded(cors_origins=("http://mine",)) as lead:
        mine = httpx.get(f"{lead.url}/health", headers={"Origin": "http://mine"})
        assert mine.headers["access-control-allow-origin"] == "http://mine"
        other = httpx.get(f"{lead.url}/health", headers={"Origin": "http://other"})
        assert "access-control-allow-origin" not in other.headers


async def test_precompute_takes_no_queue_place():
    backend = FakeBackend(FakeModel())
    thread = EngineThread(
        lambda emit: Engine(backend, NoProposer(), emit, n_slots=1, limits=Limits(n_batch=backend.n_batch)),
        n_ctx=backend.n_ctx,
        max_queued=1,
    )
    thread.start()
    try:
        thread.submit(GenerationRequest((1, 2), precompute=True))
        asked = thread.submit(GenerationRequest((1, 2), max_tokens=3))
        for precompute in (False, True):
            with pytest.raises(BusyError) as raised:
                thread.submit(GenerationRequest((1, 2), precompute=precompute))
            assert raised.value.status == 429
        assert isinstance([events async for events in asked][-1][-1], Finished)
    finally:
        await thread.stop()


async def test_failing_start_fails_only_its_request(caplog: pytest.LogCaptureFixture):
    def broken() -> Constraint:
        raise RuntimeError("a defect")

    def refused() -> Constraint:
        raise InvalidRequestError("not this one")

    backend = FakeBackend(FakeModel())
    thread = EngineThread(
        lambda emit: Engine(backend, NoProposer(), emit, n_slots=1, limits=Limits(n_batch=backend.n_batch)),
        n_ctx=backend.n_ctx,
    )
    thread.start()
    try:
        for constraint, status in ((broken, 500), (refused, 400)):
            asked = thread.submit(GenerationRequest((1, 2), constraint=constraint))
            [[event]] = [events async for events in asked]
            assert isinstance(event, Failed)
            assert event.error.status == status
        thread.command(lambda engine: 1 / 0)  # pyright: ignore[reportArgumentType]
        well = thread.submit(GenerationRequest((1, 2), max_tokens=3))
        assert isinstance([events async for events in well][-1][-1], Finished)
        check_engine(thread.engine)
    finally:
        await thread.stop()
    assert "a defect" in caplog.text
    assert "ZeroDivisionError" in caplog.text


def test_draining_server_refuses_new_requests():
    backend = Gated(FakeModel(eog_rate=0.0))
    with serving(backend, n_slots=1, door=ClientPolicy(Edge(), None, 20)) as lead, backend:
        body = {"messages": HELLO, "stream": True, "max_tokens": 30}
        backend.allow(20)  # of more than 30 steps
        with httpx.stream("POST", f"{lead.url}/v1/chat/completions", json=body) as running:
            arriving = running.iter_raw()
            text = next(arriving)
            assert httpx.get(f"{lead.url}/ready").json() == {"status": "ok"}
            lead.server.should_exit = True
            lead.until(lambda _: lead.thread.places.closed)
            ready = httpx.get(f"{lead.url}/ready")
            assert ready.status_code == 503
            assert ready.json() == {"status": "draining"}
            validate("Ready", ready.json())
            assert int(ready.headers["retry-after"]) >= 1
            health = httpx.get(f"{lead.url}/health")
            assert (health.status_code, health.json()["status"]) == (200, "draining")
            refused = post(lead)
            assert refused.status_code == 503
            assert int(refused.headers["retry-after"]) >= 1
            assert "shutting down" in error_of(refused)["message"]
            backend.allow(ENOUGH)
            text += b"".join(arriving)
        assert text.endswith(b"data: [DONE]\n\n")


def test_grace_time_ends_with_error():
    with bounded(grace_s=0.2) as lead:
        body = {"messages": HELLO, "stream": True}
        with httpx.stream("POST", f"{lead.url}/v1/chat/completions", json=body) as running:
            arriving = running.iter_text()
            text = next(arriving)
            lead.server.should_exit = True
            text += "".join(arriving)
        last = json.loads(text.strip().split("\n\n")[-1].removeprefix("data: "))
        validate("Error", last)
        assert "shutting down" in last["error"]["message"]


@contextmanager
def hanging(bounds: Bounds | None = None) -> Generator[tuple[Lead, Gated, list[httpx.Response]]]:
    """Yield a lead inside a step that does not finish, and the responses of those who wait for it."""
    responses: list[httpx.Response] = []
    with Gated(FakeModel(eog_rate=0.0)) as backend, serving(backend, bounds=bounds) as lead:
        asking = threading.Thread(target=lambda: responses.append(post(lead, max_tokens=4)))
        asking.start()
        backend.until_step(1)
        seconds = itertools.count()
        lead.thread.watchdog.clock = lambda: float(next(seconds))  # a second passes at each look
        try:
            yield lead, backend, responses
        finally:
            backend.allow(ENOUGH)
            asking.join()


def test_stuck_engine_shows_in_health(caplog: pytest.LogCaptureFixture):
    with hanging() as (lead, backend, responses):
        assert httpx.get(f"{lead.url}/health").status_code == 200
        for _ in range(100):
            lead.thread.check()
        health = httpx.get(f"{lead.url}/health")
        assert (health.status_code, health.json()["status"]) == (503, "stuck")
        assert re.fullmatch(r"no step of the model has finished for \d+ s", health.json()["reason"])
        assert httpx.get(f"{lead.url}/ready").status_code == 503
        until(lambda: "stuck: no step" in caplog.text, "it was not told")
        backend.allow(ENOUGH)
        until(lambda: "steps finish again" in caplog.text, "its end was not told")
        assert httpx.get(f"{lead.url}/health").status_code == 200
        until(lambda: responses, "the reply did not go on")
        assert responses[0].status_code == 200


def test_given_up_engine_ends_server():
    with hanging(Bounds(step_s=2)) as (lead, _, responses):
        until(lambda: responses, "the reply did not fail")
        [response] = responses
        assert response.status_code == 503
        assert response.headers["retry-after"] == "5"
        assert "no step of the model has finished for" in error_of(response)["message"]
        assert lead.server.should_exit
        assert isinstance(lead.server.failure, LostModelError)
