"""A live server whose model's replies are written beforehand: what a client makes of them, and sends back."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import uvicorn

from server.api.app import create_app
from server.api.services import Embedding, Services
from server.engine.events import Committed, Event, Failed, Finished, Started, Stats
from server.engine.request import GenerationRequest
from server.errors import DuoError
from server.lead.listening import configured
from server.text.template import ChatTemplate
from tests.contract.witness import witnessed
from tests.fake_backend import IM_END, FakeVocabulary
from tests.server.api.scripted import Script, services
from tests.templates import THINKING

VOCABULARY = FakeVocabulary()
TOKENS_A_STEP = 5


@dataclass(slots=True)
class Written:
    """Generator of these replies, one after the other.

    The server raises an error in place of a reply, or in the middle of the text before it.
    """

    replies: Sequence[str | DuoError | tuple[str, DuoError]]
    url: str = ""
    requests: list[GenerationRequest] = field(default_factory=list[GenerationRequest])

    def submit(self, request: GenerationRequest) -> Script:
        if request.precompute:  # what is settled after a reply, which is nobody's request
            return Script(*events_of("")).submit(request)
        reply = self.replies[len(self.requests)]
        self.requests.append(request)
        return Script(Started(len(request.prompt), 0), *events_of(reply)).submit(request)

    @property
    def prompts(self) -> list[str]:
        """The prompts that the model got, as its template writes them."""
        return [
            b"".join(VOCABULARY.piece(token, special=True) for token in request.prompt).decode()
            for request in self.requests
        ]


def events_of(reply: str | DuoError | tuple[str, DuoError]) -> list[Event]:
    text, error = ("", reply) if isinstance(reply, DuoError) else (reply, None)
    text, error = text if isinstance(text, tuple) else (text, error)
    tokens = [*VOCABULARY.tokenize(text, special=True), *(() if error else (IM_END,))]
    parts = [tuple(tokens[i : i + TOKENS_A_STEP]) for i in range(0, len(tokens), TOKENS_A_STEP)]
    steps = [Committed(part, (None,) * len(part)) for part in parts]
    if error:
        return [*steps, Failed(error)]
    return [*steps, Finished("stop", Stats(1, 0, len(tokens), len(steps), 1.0, 2.0))]


@contextmanager
def writing(
    *replies: str | DuoError | tuple[str, DuoError], embedding: Embedding | None = None
) -> Generator[Written]:
    """Serve them on a free port, with a template that knows thoughts and tools."""
    written = Written(replies)
    state = replace(services(written), template=ChatTemplate(THINKING), embedding=embedding)
    with live(state) as written.url:
        yield written


@contextmanager
def live(state: Services) -> Generator[str]:
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(configured(witnessed(create_app(state)), None))
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])))
    thread.start()  # whoever connects before it serves waits in the socket's queue
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
