"""The app over a generator that follows a script, called without a server: every moment can be chosen."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from server.api.app import create_app
from server.api.middleware import Edge
from server.api.services import Health, ModelCard, Services
from server.engine.events import Event, Failed, Finished, Stats
from server.engine.generate import Generator
from server.engine.request import GenerationRequest
from server.sampling.params import SamplingParams
from server.text.guard import controls_of
from server.text.template import ChatTemplate
from tests.contract.witness import witnessed
from tests.fake_backend import FakeVocabulary

N_CTX = 1 << 16
CANCELLED_STATS = Stats(n_prompt=5, n_cached=2, n_predicted=50, n_steps=25, prompt_ms=1.0, predicted_ms=2.0)


class Script:
    """Generator and Generation of one request: these events, then nothing until it is cancelled."""

    def __init__(self, *events: Event, refusal: Exception | None = None) -> None:
        self.requests: list[GenerationRequest] = []
        self.cancels: list[int | None] = []
        self.wakes: list[float] = []  # seconds
        self._events: asyncio.Queue[Event | None] = asyncio.Queue()  # None: wake()
        self._refusal = refusal
        self._ended = False
        for event in events:
            self.tell(event)

    def submit(self, request: GenerationRequest) -> Script:
        self.requests.append(request)
        if self._refusal:
            raise self._refusal
        return self

    async def __aiter__(self) -> AsyncIterator[list[Event]]:
        ended = False
        while not ended:
            events = [await self._events.get()]
            while not self._events.empty():
                events.append(self._events.get_nowait())
            ended = isinstance(events[-1], Finished | Failed)
            yield [event for event in events if event is not None]

    def wake_in(self, seconds: float) -> None:
        """Return at once: time does not pass here, and wake() says when it is over."""
        self.wakes.append(seconds)

    def wake(self) -> None:
        self._events.put_nowait(None)

    def cancel(self, keep: int | None = None) -> None:
        self.cancels.append(keep)
        if not self._ended:
            self.tell(Finished("cancelled", CANCELLED_STATS))

    def tell(self, event: Event) -> None:
        self._ended = self._ended or isinstance(event, Finished | Failed)
        self._events.put_nowait(event)


class Scripts:
    """Generator with a script for each request, in order.

    refusal: raised after the last one.
    """

    def __init__(self, *scripts: Script, refusal: Exception | None = None) -> None:
        self._left = list(scripts)
        self._refusal = refusal

    def submit(self, request: GenerationRequest) -> Script:
        if not self._left and self._refusal:
            raise self._refusal
        return self._left.pop(0).submit(request)


def services(
    script: Generator, *, health: Health | None = None, vocabulary: FakeVocabulary | None = None
) -> Services:
    return Services(
        generator=script,
        vocabulary=vocabulary or FakeVocabulary(),
        template=ChatTemplate(None, controls=controls_of(vocabulary or FakeVocabulary())),
        model=ModelCard("toy", 1, N_CTX, 1000, "a toy"),
        defaults=SamplingParams(),
        health=lambda: health or Health("ok", 1, 0, 0, 0.0),
        fingerprint="fp",
    )


@dataclass(slots=True)
class Call:
    """One HTTP request given directly to the app, and what it has sent so far.

    arriving: parts of a body in place of `body`, None for a client that leaves.
    """

    state: Services
    path: str = "/v1/chat/completions"
    body: dict[str, Any] | None = None
    method: str = "POST"
    query: str = ""
    headers: dict[str, str] = field(default_factory=dict[str, str])
    sent: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    arriving: list[bytes | None] = field(default_factory=list[bytes | None])
    _asked: bool = False
    _news: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def run(self) -> None:
        """Run the app until it has answered. Raises what it raises."""
        scope: dict[str, Any] = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": self.method,
            "scheme": "http",
            "path": self.path,
            "query_string": self.query.encode(),
            "headers": [(k.lower().encode(), v.encode()) for k, v in self.headers.items()],
            "state": {"services": self.state},
        }
        await witnessed(create_app(self.state, Edge(cors_origins=("*",))))(scope, self._receive, self._send)

    async def until_sent(self, part: bytes) -> None:
        """Wait until the body holds `part`."""
        async with self._news:
            await self._news.wait_for(lambda: part in self.content)

    @property
    def status(self) -> int:
        return self.sent[0]["status"]

    @property
    def header(self) -> dict[str, str]:
        return {k.decode(): v.decode() for k, v in self.sent[0]["headers"]}

    @property
    def content(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.sent)

    @property
    def json(self) -> Any:
        return json.loads(self.content)

    @property
    def events(self) -> Sequence[Any]:
        """The payloads of a stream: objects, and the text [DONE]."""
        payloads = [e.removeprefix("data: ") for e in self.content.decode().split("\n\n")[:-1]]
        return [payload if payload == "[DONE]" else json.loads(payload) for payload in payloads]

    async def _receive(self) -> dict[str, Any]:
        if self.arriving:
            part = self.arriving.pop(0)
            if part is None:
                return {"type": "http.disconnect"}
            return {"type": "http.request", "body": part, "more_body": True}
        if not self._asked:
            self._asked = True
            return {"type": "http.request", "body": json.dumps(self.body).encode(), "more_body": False}
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        async with self._news:
            self.sent.append(message)
            self._news.notify_all()
