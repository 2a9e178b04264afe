"""A server over the toy model, on a thread of the test: real HTTP, the real engine, no weights."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial
from typing import Any

import uvloop

from server.api.app import create_app
from server.api.middleware import Edge
from server.api.services import DrafterHealth, Health, ModelCard, Services
from server.api.traffic import Traffic
from server.engine.engine import Engine
from server.engine.scheduler import Limits
from server.engine.thread import Bounds, EngineThread
from server.grammar.compiler import Compiler
from server.lead.listening import ClientPolicy, DrainingServer, configured
from server.sampling.params import SamplingParams
from server.text.guard import controls_of
from server.text.template import ChatTemplate
from tests.checks import check_engine
from tests.contract.witness import witnessed
from tests.fake_backend import FakeBackend
from tests.support import OracleProposer, until


class Lead:
    """A running server: its URL, and its objects for a test to look at."""

    backend: FakeBackend

    def __init__(self, url: str, server: DrainingServer, thread: EngineThread, services: Services) -> None:
        self.url = url
        self.server = server
        self.services = services
        self.thread = thread

    def until(self, condition: Callable[[Engine], bool]) -> None:
        """Wait until condition(engine) is true."""
        until(lambda: condition(self.thread.engine), "the engine never got there")

    def until_idle(self) -> None:
        """Wait until no session is active or queued, then check_engine()."""
        self.until(lambda engine: self.services.history.idle and not engine.n_active and not engine.n_waiting)
        check_engine(self.thread.engine)


def _health(thread: EngineThread, n_slots: int) -> Health:
    drafters = (DrafterHealth("d", "toy", "refused", "vocabulary sizes differ", {"stale": 2}, "laptop"),)
    reason = thread.stuck()
    status = "stuck" if reason else "draining" if thread.places.closed else "ok"
    return Health(status, n_slots, thread.engine.n_active, 0, 1.5, drafters, reason=reason)


@contextmanager
def serving(
    backend: FakeBackend,
    *,
    max_queued: int = 64,
    n_slots: int = 4,
    template: str | None = None,
    door: ClientPolicy | None = None,
    bounds: Bounds | None = None,
    **more: Any,
) -> Generator[Lead]:
    """Serve on a free port, on a thread with its own event loop. more: further fields of Services."""
    door = door or ClientPolicy(Edge(), None, grace_s=0)
    listener = socket.create_server(("127.0.0.1", 0))
    url = f"{'https' if door.tls else 'http'}://127.0.0.1:{listener.getsockname()[1]}"
    ready = threading.Event()
    held: list[Lead] = []

    async def serve() -> None:
        limits = Limits(n_batch=backend.n_batch, n_chunk=16)
        traffic = Traffic()
        thread = EngineThread(
            lambda emit: Engine(backend, OracleProposer([]), emit, n_slots=n_slots, limits=limits),
            n_ctx=backend.n_ctx,
            max_queued=max_queued,
            bounds=bounds,
            observers=[traffic],
        )

        services = Services(
            thread,
            backend.vocab,
            ChatTemplate(template, controls=controls_of(backend.vocab)),
            ModelCard("toy", 1, backend.n_ctx, 1000, "a toy"),
            SamplingParams(0.0),
            partial(_health, thread, n_slots),
            "fp",
            grammars=Compiler(backend.vocab),
            traffic=traffic,
            ask=thread.ask,
            places=thread.places,
            **more,
        )
        config = configured(witnessed(create_app(services, door.edge)), door.tls, door.bounds)
        hand_over = partial(services.background.hand_over, services.replies)
        server = DrainingServer(config, thread, grace_s=door.grace_s, hand_over=hand_over)
        thread.start()
        lead = Lead(url, server, thread, services)
        lead.backend = backend
        held.append(lead)
        ready.set()
        await server.serve(sockets=[listener])
        await thread.stop()

    runner = threading.Thread(target=uvloop.run, args=(serve(),))
    runner.start()
    ready.wait()
    try:
        yield held[0]
    finally:
        held[0].server.should_exit = True
        runner.join()
