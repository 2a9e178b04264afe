"""A server whose slots can be acted on: the app over the toy model, in the test's own event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
from starlette.types import ASGIApp, Receive, Scope, Send

from server.api.app import create_app
from server.api.services import Services
from server.cache.named import NamedFiles
from server.cache.snapshots import Snapshots
from server.engine.engine import Engine
from server.engine.events import Started
from server.engine.generate import Generation
from server.engine.request import GenerationRequest
from server.engine.scheduler import Limits
from server.engine.thread import EngineThread, Observer
from server.sampling.params import SamplingParams
from tests.contract.contract import validate
from tests.contract.witness import witnessed
from tests.fake_backend import FakeBackend, FakeModel
from tests.server.api.scripted import services
from tests.support import ENDLESS, OracleProposer

N_PLACES = 3
ENOUGH = 1 << 24
FIRST = {"role": "user", "content": "tell me a story of a lead and its drafters, " * 4}
REPLIES = {"save": "SlotSaved", "restore": "SlotRestored", "erase": "SlotErased"}


def app_of(state: Services) -> ASGIApp:
    """Return the app as it is once its lifespan has begun."""
    app = witnessed(create_app(state))

    async def with_state(scope: Scope, receive: Receive, send: Send) -> None:
        await app({**scope, "state": {"services": state}}, receive, send)

    return with_state


@dataclass(slots=True)
class Server:
    """The app, its engine, and ways for a test to ask."""

    http: httpx.AsyncClient
    thread: EngineThread
    backend: FakeBackend
    state: Services
    directory: Path

    async def chat(self, *messages: dict[str, str], **fields: Any) -> dict[str, Any]:
        body = {"messages": [FIRST, *messages], "max_tokens": 40, **fields}
        response = await self.http.post("/v1/chat/completions", json=body)
        assert response.status_code == 200, response.text
        await self.until_idle()
        return response.json()

    async def list(self) -> list[dict[str, Any]]:
        response = await self.http.get("/slots")
        assert response.status_code == 200, response.text
        validate("Slots", response.json())
        return response.json()

    async def act(self, id: object, action: str, **body: object) -> httpx.Response:
        return await self.http.post(f"/slots/{id}", params={"action": action}, json=body)

    async def done(self, id: int, action: str, **body: object) -> dict[str, Any]:
        response = await self.act(id, action, **body)
        assert response.status_code == 200, response.text
        validate(REPLIES[action], response.json())
        return response.json()

    async def refused(self, id: object, action: str, status: int, **body: object) -> dict[str, Any]:
        response = await self.act(id, action, **body)
        assert response.status_code == status, response.text
        validate("Error", response.json())
        return response.json()["error"]

    async def occupied(self) -> int:
        """Return the one slot that holds a conversation."""
        (held,) = [slot["id"] for slot in await self.list() if slot["n_past"]]
        return held

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(10):
            while not condition():
                await asyncio.sleep(0.002)

    async def until_idle(self) -> None:
        engine, history = self.thread.engine, self.state.history
        await self.until(lambda: history.idle and not engine.n_active and not engine.n_waiting)

    def hold(self, until: threading.Event) -> None:
        """Block the engine's thread until the event is set."""

        def wait(_: Engine) -> None:
            assert until.wait(10)

        self.thread.command(wait)

    async def begun(self, request: GenerationRequest) -> Generation:
        """Return a generation that has a slot."""
        generation = self.thread.submit(request)
        async for events in generation:
            if isinstance(events[0], Started):
                return generation
        raise AssertionError("it never started")


def endless() -> FakeBackend:
    return FakeBackend(FakeModel(eog_rate=0.0), n_ctx=ENDLESS, n_cells=ENDLESS, n_seqs=N_PLACES, step_s=0.001)


@asynccontextmanager
async def serving(
    directory: Path,
    backend: FakeBackend | None = None,
    *,
    files: bool = True,
    tiers: Snapshots | None = None,
    model: str = "toy",
    n_slots: int = N_PLACES,
) -> AsyncGenerator[Server]:
    backend = backend or FakeBackend(FakeModel(seed=3, eog_rate=0.0), n_seqs=N_PLACES)

    def make(emit: Observer) -> Engine:
        limits = Limits(n_batch=backend.n_batch, n_chunk=16)
        engine = Engine(backend, OracleProposer([]), emit, n_slots=n_slots, limits=limits)
        if tiers:
            engine.residence.save_to(tiers)
        return engine

    thread = EngineThread(make, n_ctx=backend.n_ctx)
    named = NamedFiles(directory / "slots", budget_bytes=ENOUGH, fingerprint=model) if files else None
    state = replace(services(thread), defaults=SamplingParams(0.0), ask=thread.ask, slot_files=named)
    thread.start()
    transport = httpx.ASGITransport(app=app_of(state))
    try:
        async with httpx.AsyncClient(transport=transport, base_url="http://duo", timeout=20) as http:
            yield Server(http, thread, backend, state, directory)
    finally:
        await thread.stop()
        await state.history.close()
