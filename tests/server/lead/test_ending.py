"""A signal just before a lead serves: its engine is not started, or is stopped."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from contextlib import closing, suppress
from typing import Any

import pytest

from server.api.middleware import Edge
from server.lead import startup
from server.lead.idle_measuring import IdleMeasuring
from server.lead.listener import open_socket
from server.lead.listening import ClientPolicy
from server.stop_signals import raise_when_requested
from tests.fake_backend import FakeBackend
from tests.http_lead import serving


class StartedEngine:
    """An engine that counts its starts and stops."""

    is_wanted = False
    n_live = 0

    def __init__(self, starting: Callable[[], object]) -> None:
        """Call `starting` when it is started."""
        self._starting = starting
        self.n_started = self.n_stopped = 0

    def start(self) -> None:
        self.n_started += 1
        self._starting()

    async def stop(self) -> None:
        self.n_stopped += 1

    def check(self) -> None: ...

    def stuck(self) -> str: ...  # pyright: ignore[reportReturnType]

    def lost(self) -> None: ...

    def drain(self) -> None: ...


@pytest.fixture(autouse=True)
def starting() -> None:
    raise_when_requested()


def serve(engine: Any) -> None:
    with serving(FakeBackend()) as lead, closing(open_socket("127.0.0.1", 0)) as listener:
        door, measuring = ClientPolicy(Edge(), None, 0), IdleMeasuring(engine, [])
        asyncio.run(startup._serve_http(engine, lead.services, listener, door, measuring))  # pyright: ignore[reportPrivateUsage]


def told() -> None:
    signal.raise_signal(signal.SIGTERM)


def test_a_signal_that_a_garbage_collection_swallowed(monkeypatch: pytest.MonkeyPatch):
    def swallow() -> None:
        with suppress(SystemExit):
            told()

    monkeypatch.setattr(startup, "keep_for_good", swallow)
    engine = StartedEngine(told)
    with pytest.raises(SystemExit):
        serve(engine)
    assert engine.n_started == 0


def test_a_signal_while_the_engine_starts(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(startup, "keep_for_good", lambda: None)
    engine = StartedEngine(told)
    serve(engine)
    assert (engine.n_started, engine.n_stopped) == (1, 1)
