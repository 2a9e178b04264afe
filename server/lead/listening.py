"""HTTP on a socket: while the model loads, then until the last reply has ended."""

from __future__ import annotations

import ssl
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from socket import socket
from typing import Any, TypeAlias, cast

import uvicorn
import uvloop

from server.api.access import Access
from server.api.connection import BoundedConnection, ConnectionBounds
from server.api.middleware import Edge
from server.api.request_log import RequestLog
from server.engine.thread import EngineThread
from server.errors import StartupError
from server.lead.door import DoorSettings

FLUSH_S = 5  # for replies to be told that they end here
MIB = 20  # bits

App: TypeAlias = Callable[..., Any]
"""Of ASGI, which Starlette and uvicorn type each in a way of their own."""


@dataclass(frozen=True, slots=True)
class Tls:
    """PEM files: a private key, and its certificate chain."""

    key: Path
    certificate: Path

    def check(self) -> None:
        """Raises StartupError if the files cannot be used."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        try:
            context.load_cert_chain(self.certificate, self.key, password=b"")  # it would be asked for
        except (OSError, ValueError) as error:
            raise StartupError(
                f"cannot serve TLS with {self.certificate} and {self.key} ({error}): give a certificate and "
                "its private key, unencrypted, as PEM files with --ssl-cert-file and --ssl-key-file"
            ) from error


@dataclass(frozen=True, slots=True)
class Door:
    """Settings for clients. grace_s: seconds for running replies when the server ends."""

    edge: Edge
    tls: Tls | None
    grace_s: float
    bounds: ConnectionBounds = field(default_factory=ConnectionBounds)


def door_of(settings: DoorSettings) -> Door:
    """Raises StartupError."""
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
    """headers: of every reply."""
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
    """Asked to end, it refuses new requests with a 503 and lets running replies finish for at most grace_s;
    later ones end with an error."""

    def __init__(self, config: uvicorn.Config, engine: EngineThread, *, grace_s: float) -> None:
        super().__init__(config)
        self._engine = engine
        self._grace_s = grace_s
        self._until: float | None = None

    async def on_tick(self, counter: int) -> bool:
        """Called ten times a second. Returns whether to close the socket."""
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
    """Serve this app on a thread while the block lasts. The socket keeps listening: clients that connect
    between two servers wait."""
    own = listener.dup()
    # no connection outlasts its first reply: the next one is for another server
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
