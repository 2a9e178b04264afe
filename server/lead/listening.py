"""Serve HTTP with two servers, one after the other, on one listening socket.

While the model loads, answering() serves a small application on a thread: the page, and 503 for all else.
Then DrainingServer serves the whole API on the event loop, until the process is asked to end.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from ipaddress import ip_address
from socket import socket
from typing import Any, TypeAlias, cast

import uvicorn
import uvloop

from server.api.access import NOBODY, Access
from server.api.connection import BoundedConnection, ConnectionBounds
from server.api.middleware import Edge
from server.api.request_log import RequestLog
from server.engine.thread import EngineThread
from server.errors import DuoError
from server.lead.listener import Tls, tls_of
from server.settings import ClientPolicySettings

logger = logging.getLogger("duo.lead")

FLUSH_S = 5  # seconds for cancelled replies to send their last event
MAX_SOCKET_MESSAGE = 1 << 12  # bytes of a message from a browser that drafts: 20 times the longest
# Seconds between pings of a browser that drafts, and for each answer. Half: busy phones are dropped; twice: a
# browser that has left is noticed twice as late.
SOCKET_PING_S = 10.0
MIB_SHIFT = 20  # a shift: n << MIB_SHIFT is n MiB in bytes

App: TypeAlias = Callable[..., Any]
"""An ASGI application. Starlette and uvicorn define different types for it."""


@dataclass(frozen=True, slots=True)
class ClientPolicy:
    """Rules by which a server admits clients."""

    edge: Edge  # rules for each request: keys, limits of its body, the log
    tls: Tls | None  # None: plain HTTP
    grace_s: float  # seconds that running replies get when the process is asked to end
    bounds: ConnectionBounds = field(default_factory=ConnectionBounds)  # limits of connections
    made_key: str | None = None  # the only key, if duo made it for this start

    @property
    def clients(self) -> str:
        """Return, in words, which clients are admitted."""
        if self.edge.access.callers != [NOBODY]:
            return "with an API key"
        return "of this machine, without a key" if self.edge.local else "everybody, without a key"


def client_policy_of(settings: ClientPolicySettings, address: str = "127.0.0.1") -> ClientPolicy:
    """Return the ClientPolicy that these flags describe; read and check its files.

    Args:
        settings: The flags.
        address: The IP address on which the server listens.

    Raises:
        StartupError: The keys or the certificate cannot be used.
    """
    keys = settings.keys()
    local = ip_address(address).is_loopback
    made = None if keys or local or settings.no_api_key else secrets.token_urlsafe(24)
    edge = Edge(
        Access(keys or filter(None, [made])),
        settings.cors_origins,
        settings.max_body << MIB_SHIFT,
        settings.timeout,
        RequestLog(settings.log_requests or settings.log_prompts, settings.log_prompts),
        local and not settings.no_api_key,
    )
    bounds = ConnectionBounds(write_s=settings.write_timeout)
    return ClientPolicy(edge, tls_of(settings), settings.grace, bounds, made)


def configured(
    app: App, tls: Tls | None, bounds: ConnectionBounds | None = None, **headers: str
) -> uvicorn.Config:
    """Return uvicorn's settings for one of the two servers; `headers` are added to every response."""
    return uvicorn.Config(
        app,
        http=cast(Any, partial(BoundedConnection, bounds=bounds or ConnectionBounds())),
        log_config=None,
        access_log=False,
        ws=cast(Any, _socket_protocol),
        ws_max_size=MAX_SOCKET_MESSAGE,
        ws_ping_interval=SOCKET_PING_S,
        ws_ping_timeout=SOCKET_PING_S,
        ws_per_message_deflate=False,
        server_header=False,
        timeout_graceful_shutdown=FLUSH_S,
        ssl_keyfile=tls.key if tls else None,
        ssl_certfile=tls.certificate if tls else None,
        headers=list(headers.items()),
    )


def _socket_protocol(**named: Any) -> asyncio.Protocol:
    """Return a WebSocket's protocol. Imports it late, since that takes 0.1 s."""
    from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

    return WebSocketsSansIOProtocol(**named)


class DrainingServer(uvicorn.Server):
    """The server of the whole API.

    When asked to end, it answers new requests with 503, and hands over replies that other leads can continue.
    All other replies have grace_s to finish, then end with an error.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        engine: EngineThread,
        *,
        grace_s: float,
        hand_over: Callable[[], None] | None = None,
    ) -> None:
        """Prepare to serve.

        Args:
            config: The result of configured().
            engine: The engine's thread.
            grace_s: Seconds that running replies have to finish.
            hand_over: Called when the server is asked to end, to leave replies to other leads.
        """
        super().__init__(config)
        self._hand_over = hand_over
        self._engine = engine
        self._grace_s = grace_s
        self._until: float | None = None
        self._stuck = False
        self.failure: DuoError | None = None

    def end(self) -> None:
        """Ask the server to end, once running replies have finished or their time is up."""
        self.should_exit = True

    def fail(self, error: DuoError) -> None:
        """End because the engine no longer responds; running replies get this error."""
        self.failure = self.failure or error
        self._engine.abandon(error)
        self.should_exit = True

    def _watch_engine(self) -> None:
        """Log when the engine gets stuck or resumes; end the server with an error once the engine is lost."""
        if self.failure is not None:
            return
        self._engine.check()
        why = self._engine.stuck()
        if bool(why) != self._stuck:
            self._stuck = bool(why)
            logger.warning("stuck: %s", why) if why else logger.warning("steps finish again")
        if error := self._engine.lost():
            self.fail(error)

    async def on_tick(self, counter: int) -> bool:
        """Return True once the server may close its connections. uvicorn calls it ten times a second."""
        self._watch_engine()
        if not await super().on_tick(counter):
            return False
        if self._until is None:
            self._until = time.monotonic() + self._grace_s
            self._engine.drain()
            if self._hand_over is not None:
                self._hand_over()
        if not self._engine.n_live or self.force_exit:
            return True
        if time.monotonic() < self._until:
            return False
        self._engine.cancel_all()
        return True


@contextmanager
def answering(listener: socket, app: App, tls: Tls | None) -> Generator[None]:
    """Serve an application on the socket `listener` from a thread, until the block ends.

    The socket stays open: a client that connects between the two servers waits for the second one.
    """
    own = listener.dup()  # uvicorn closes the socket that it serves
    # Close each connection after its response, so that the client's next request reaches the other server.
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
