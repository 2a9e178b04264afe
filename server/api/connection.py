"""Limit a client's connection before the application sees a request or a key.

uvicorn with httptools limits neither the size of request heads, nor silent connections, nor unread replies.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import time
from dataclasses import dataclass, field
from typing import Any

import orjson
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from server.api import problem
from server.errors import InvalidRequestError

logger = logging.getLogger("duo.api")

MAX_HEAD = 1 << 16
"""Maximum bytes of a request line with headers and trailers, as in uvicorn with h11."""
MAX_HEADERS = 100
"""Maximum number of headers, as in Apache (LimitRequestFields)."""
HEAD_S = 60.0
"""Seconds for a head to arrive, counted from the connection or from the head's first byte.

As in nginx (client_header_timeout).
"""
WRITE_S = 60.0
"""Seconds within which a client must read the data buffered for it, as in nginx (send_timeout)."""
RESERVED = 256
"""File descriptors kept free for the model, the cache, the bus and the log."""
FULL_LOG_S = 60.0
"""Minimum seconds between two log lines about refused connections."""


def _most_connections() -> int:
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(files // 2, files - RESERVED) if files > 0 else 1 << 20  # 0 or less: unlimited


@dataclass(slots=True)
class ConnectionBounds:
    """Limits of all connections; `most` leaves RESERVED file descriptors for other uses."""

    head_s: float = HEAD_S
    write_s: float = WRITE_S
    most: int = field(default_factory=_most_connections)  # connections at a time
    _logged_at: float = float("-inf")

    def log_full(self) -> None:
        """Log that clients are refused, at most once in FULL_LOG_S."""
        now = time.monotonic()
        if now - self._logged_at >= FULL_LOG_S:
            self._logged_at = now
            logger.warning(
                "%d connections are open: more are refused until one ends (raise ulimit -n)", self.most
            )


class BoundedConnection(HttpToolsProtocol):
    """A connection that closes when it exceeds a limit; the application then sees that the client left."""

    def __init__(self, *arguments: Any, bounds: ConnectionBounds, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._bounds = bounds
        self._n_beside = 0  # bytes of this request's head and trailers
        self._refusal: InvalidRequestError | None = None
        self._head_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if len(self.connections) > self._bounds.most:
            self._bounds.log_full()
            transport.abort()
        else:
            self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_head()
        super().connection_lost(exc)  # resumes writing

    def data_received(self, data: bytes) -> None:
        self._n_beside += len(data)
        super().data_received(data)
        self._n_beside = max(0, self._n_beside)
        if self._n_beside > MAX_HEAD and not self.transport.is_closing():
            self._refuse_and_close(_too_large(f"{MAX_HEAD} bytes beside its body"))

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if self._head_timer is None:
            self._await_head()

    def on_headers_complete(self) -> None:
        self._end_head()
        if len(self.headers) > MAX_HEADERS:
            self._refusal = _too_large(f"{MAX_HEADERS} headers")
            raise self._refusal
        super().on_headers_complete()

    def on_chunk_header(self) -> None:
        """Reset the count of bytes. httptools calls this after the size line of each chunk of a body."""
        self._n_beside = 0

    def on_body(self, body: bytes) -> None:
        self._n_beside -= len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._n_beside = 0
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """Refuse the request. uvicorn calls this after errors of its parser and of this class's callbacks."""
        self._refuse_and_close(self._refusal or InvalidRequestError(msg))

    def pause_writing(self) -> None:
        super().pause_writing()
        self._write_timer = self.loop.call_later(self._bounds.write_s, self._abort_unread)

    def resume_writing(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
        super().resume_writing()

    def _await_head(self) -> None:
        self._head_timer = self.loop.call_later(self._bounds.head_s, self.transport.abort)

    def _end_head(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _abort_unread(self) -> None:
        logger.warning(
            "a client read nothing of its reply for %g s (--write-timeout): its connection ends",
            self._bounds.write_s,
        )
        self.transport.abort()

    def _refuse_and_close(self, error: InvalidRequestError) -> None:
        """Answer with the error unless a reply has begun, and close the connection."""
        if self.cycle and self.cycle.response_started and not self.cycle.response_complete:
            self.transport.abort()
            return
        body = orjson.dumps(problem.body(error))
        head = f"content-type: application/json\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
        self.transport.write(STATUS_LINE[error.status] + head.encode() + body)
        self.transport.close()


def _too_large(bound: str) -> InvalidRequestError:
    return InvalidRequestError(f"the request has more than {bound}", status=431)
