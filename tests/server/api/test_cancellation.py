"""A client that goes away, in each of the moments it may: its slot is free after the step that runs."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import urlsplit

import httpx
import pytest

from tests.contract.contract import validate
from tests.fake_backend import FakeModel
from tests.gated import Gated, at_command
from tests.http_lead import Lead, serving
from tests.support import ENDLESS


@dataclass(slots=True)
class Scene:
    """A lead whose steps the test allows one by one."""

    lead: Lead
    backend: Gated
    links: contextlib.ExitStack

    def ask(self, *, stream: bool) -> socket.socket:
        """Send a request of 5 prompt chunks with an endless reply and return its connection."""
        content = "a prompt that takes five steps. " * 2
        body = {"messages": [{"role": "user", "content": content}], "stream": stream}
        data = json.dumps(body).encode()
        parts = urlsplit(self.lead.url)
        link = self.links.enter_context(socket.create_connection((parts.hostname, parts.port)))
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: duo\r\nContent-Length: {len(data)}\r\n\r\n"
        link.sendall(head.encode() + data)
        return link

    def leave(self, link: socket.socket) -> None:
        """Close the connection, and wait until the server has told the engine."""
        noticed = threading.Event()
        with at_command(self.lead.thread, noticed.set):
            link.close()
            assert noticed.wait(10), "the server never noticed"

    def n_busy(self) -> int:
        """Return the busy slots in GET /slots, which the engine answers after its running step."""
        with at_command(self.lead.thread, lambda: self.backend.allow(1)):
            slots = httpx.get(f"{self.lead.url}/slots").json()
        validate("Slots", slots)
        return sum(slot["is_processing"] for slot in slots)


@pytest.fixture
def scene() -> Iterator[Scene]:
    backend = Gated(FakeModel(eog_rate=0.0), n_ctx=ENDLESS, n_cells=ENDLESS)
    with serving(backend, n_slots=1) as lead, backend, contextlib.ExitStack() as links:
        yield Scene(lead, backend, links)


MOMENTS = {"before the first byte": 1, "prefill": 3, "decode": 10}


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize("step", MOMENTS.values(), ids=MOMENTS)
def test_cancellation_frees_slot_next_step(scene: Scene, step: int, stream: bool):
    link = scene.ask(stream=stream)
    scene.backend.allow(step - 1)
    scene.backend.until_step(step)
    assert scene.lead.thread.engine.n_active == 1
    if step == 1:
        link.setblocking(False)
        with pytest.raises(BlockingIOError):
            link.recv(1)
    scene.leave(link)
    scene.backend.allow(1)
    scene.lead.until(lambda engine: not engine.n_active)
    assert scene.n_busy() == 0
    assert scene.backend.n_begun == step
    scene.lead.until_idle()


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
def test_waiting_request_is_cancelled_next_step(scene: Scene, stream: bool):
    running = scene.ask(stream=True)
    scene.backend.allow(1)
    scene.backend.until_step(2)
    waiting = scene.ask(stream=stream)
    scene.lead.until(lambda _: scene.lead.thread.n_live == 2)
    scene.leave(waiting)
    scene.backend.allow(1)
    scene.backend.until_step(3)
    assert scene.lead.thread.engine.n_waiting == 0
    assert scene.n_busy() == 1
    scene.backend.until_step(4)
    scene.leave(running)
    scene.backend.allow(1)
    scene.lead.until_idle()
    assert scene.n_busy() == 0
    assert scene.backend.n_begun == 4
