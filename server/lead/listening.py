"""The two HTTP servers of a lead, on one listening socket, and their settings.

While the model loads, answering() serves a small application on a thread: the page, and 503 to the rest. Then
DrainingServer serves the whole API on the event loop, until the process is asked to end.
"""

from __future__ import annotations

import ssl
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from socket import AF_INET, AF_INET6, SO_REUSEADDR, SOCK_STREAM, SOL_SOCKET, socket
from typing import Any, TypeAlias, cast

import uvicorn
import uvloop

from server.api.access import Access
from server.api.connection import BoundedConnection, ConnectionBounds
from server.api.middleware import Edge
from server.api.request_log import RequestLog
from server.engine.thread import EngineThread
from server.errors import DuoError, StartupError
from server.settings import DoorSettings

FLUSH_S = 5  # seconds for cancelled replies to send their last event
MIB = 20  # bits

App: TypeAlias = Callable[..., Any]
"""An ASGI application. Starlette and uvicorn each have a type of their own for one."""


@dataclass(frozen=True, slots=True)
class Tls:
    """The PEM files of a private key and of its certificate chain."""

    key: Path
    certificate: Path

    def check(self) -> None:
        """Raises StartupError if the files cannot be used."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        try:
            context.load_cert_chain(self.certificate, self.key, password=b"")  # else OpenSSL asks for one
        except (OSError, ValueError) as error:
            raise StartupError(
                f"cannot serve TLS with {self.certificate} and {self.key} ({error}): give a certificate and "
                "its private key, unencrypted, as PEM files with --ssl-cert-file and --ssl-key-file"
            ) from error


@dataclass(frozen=True, slots=True)
class Door:
    """How clients are admitted. edge: what each request passes (keys, bounds of its body, the log). tls: None
    for plain HTTP. grace_s: seconds that running replies get when the process is asked to end. bounds: of
    each connection, before there is a request."""

    edge: Edge
    tls: Tls | None
    grace_s: float
    bounds: ConnectionBounds = field(default_factory=ConnectionBounds)


def open_socket(host: str, port: int) -> socket:
    """Raises StartupError when the address is in use or not this machine's."""
    family = AF_INET6 if ":" in host else AF_INET
    listener = socket(family, SOCK_STREAM)
    try:
        listener.setsockopt(SOL_SOCKET, SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(1024)
    except OSError as error:
        listener.close()
        raise StartupError(
            f"cannot listen on {host}:{port} ({error.strerror}): choose another address with --host or --port"
        ) from error
    return listener


def door_of(settings: DoorSettings) -> Door:
    """The Door that these flags describe, its files read and checked. Raises StartupError."""
    edge = Edge(
        Access(settings.keys()),
        settings.cors_origins,
        settings.max_body << MIB,
        settings.timeout,
        RequestLog(settings.log_requests or settings.log_prompts, settings.log_prompts),
    )
    bounds = ConnectionBounds(write_s=settings.write_timeout)
    key, certificate = settings.ssl_key_file, settings.ssl_cert_file
    if (key is None) != (certificate is None):
        raise StartupError("TLS needs both --ssl-key-file and --ssl-cert-file")
    tls = Tls(key, certificate) if key and certificate else None
    if tls:
        tls.check()
    return Door(edge, tls, settings.grace, bounds)


def configured(
    app: App, tls: Tls | None, bounds: ConnectionBounds | None = None, **headers: str
) -> uvicorn.Config:
    """uvicorn's settings for one of the two servers. headers: added to every response."""
    return uvicorn.Config(
        app,
        http=cast(Any, partial(BoundedConnection, bounds=bounds or ConnectionBounds())),
        log_config=None,
        access_log=False,
        ws="none",
        server_header=False,
        timeout_graceful_shutdown=FLUSH_S,
        ssl_keyfile=tls.key if tls else None,
        ssl_certfile=tls.certificate if tls else None,
        headers=list(headers.items()),
    )


class DrainingServer(uvicorn.Server):
    """The server of the whole API. Asked to end, it answers new requests with 503 and lets running replies
    finish for at most grace_s; those that are not done by then end with an error."""

    def __init__(self, config: uvicorn.Config, engine: EngineThread, *, grace_s: float) -> None:
        super().__init__(config)
        self._engine = engine
        self._grace_s = grace_s
        self._until: float | None = None
        self.failure: DuoError | None = None

    def fail(self, error: DuoError) -> None:
        """End because of this error, which running replies get; the engine does not answer any more."""
        self.failure = self.failure or error
        self._engine.abandon(error)
        self.should_exit = True

    async def on_tick(self, counter: int) -> bool:
        """Called by uvicorn ten times a second. True once the server may close its connections."""
        if not await super().on_tick(counter):
            return False
        if self._until is None:
            self._until = time.monotonic() + self._grace_s
            self._engine.drain()
        if not self._engine.n_live or self.force_exit:
            return True
        if time.monotonic() < self._until:
            return False
        self._engine.cancel_all()
        return True


@contextmanager
def answering(listener: socket, app: App, tls: Tls | None) -> Generator[None]:
    """Serve this application on a thread while the block lasts. The socket goes on listening: a client that
    connects between the two servers waits for the second."""
    own = listener.dup()  # uvicorn closes the one that it serves
    # One response for each connection: the next request is for the other server.
    server = uvicorn.Server(configured(app, tls, connection="close"))

    def serve() -> None:
        uvloop.run(server.serve(sockets=[own]))

    thread = threading.Thread(target=serve, name="duo-waiting", daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.should_exit = True
        thread.join()
