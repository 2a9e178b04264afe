"""A live server over the toy model: real HTTP, the real engine, no weights."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager

import uvicorn

from server.api.served import DrafterHealth, Health, ModelCard, Served
from server.api.traffic import Traffic
from server.app import create_app
from server.engine.engine import Engine
from server.engine.scheduler import Limits
from server.engine.thread import EngineThread
from server.llama.fake import FakeBackend
from server.sampling.params import SamplingParams
from server.text.template import ChatTemplate
from tests.support import OracleProposer


class Lead:
    """What a test may look at besides HTTP."""

    def __init__(self, url: str, thread: EngineThread, backend: FakeBackend, served: Served) -> None:
        self.url = url
        self.served = served
        self.thread = thread
        self.backend = backend

    def until(self, condition: Callable[[Engine], bool]) -> None:
        """Wait for the engine to be in some state."""
        deadline = time.monotonic() + 10
        while not condition(self.thread.engine):
            assert time.monotonic() < deadline, "the engine never got there"
            time.sleep(0.002)

    def until_idle(self) -> None:
        """Wait until nothing runs, and check that nothing is left over."""
        self.until(lambda engine: self.served.history.idle and not engine.n_active and not engine.n_waiting)
        self.thread.engine.check()


@contextmanager
def serving(
    backend: FakeBackend, *, max_queued: int = 64, n_slots: int = 4, template: str | None = None
) -> Generator[Lead]:
    """Serve on a free port, in a thread with an event loop of its own."""
    listener = socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    ready = threading.Event()
    held: list[tuple[uvicorn.Server, EngineThread, Served]] = []

    async def serve() -> None:
        limits = Limits(n_batch=backend.n_batch, n_chunk=16)
        traffic = Traffic()
        thread = EngineThread(
            lambda emit: Engine(backend, OracleProposer([]), emit, n_slots=n_slots, limits=limits),
            n_ctx=backend.n_ctx,
            max_queued=max_queued,
            observers=[traffic],
        )

        def health() -> Health:
            drafters = (DrafterHealth("d", "toy", "refused", "vocabulary sizes differ", {"stale": 2}),)
            return Health(
                "stuck" if thread.stuck() else "ok", n_slots, thread.engine.n_active, 0, 1.5, drafters
            )

        served = Served(
            thread,
            backend.vocab,
            ChatTemplate(template),
            ModelCard("toy", 1, backend.n_ctx, 1000, "a toy"),
            SamplingParams(0.0),
            health,
            "fp",
            traffic=traffic,
        )
        config = uvicorn.Config(create_app(served), log_config=None, timeout_graceful_shutdown=1)
        server = uvicorn.Server(config)
        thread.start()
        held.append((server, thread, served))
        ready.set()
        await server.serve(sockets=[listener])
        await thread.stop()

    runner = threading.Thread(target=asyncio.run, args=(serve(),))
    runner.start()
    ready.wait()
    server, thread, served = held[0]
    try:
        yield Lead(url, thread, backend, served)
    finally:
        server.should_exit = True
        runner.join()
