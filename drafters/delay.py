"""A bus with a fixed latency each way, for measurements."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from server.speculation.wire.bus import Bus, Listener
from server.speculation.wire.messages import Message
from server.speculation.wire.presence import Presence


class DelayedBus:
    """Implements Bus over another bus, and Listener for that one. Keeps the order."""

    def __init__(self, bus: Bus, latency_s: float) -> None:
        self._bus = bus
        self._latency_s = latency_s
        self._listener: Listener | None = None
        self._wake = threading.Condition()
        self._due: deque[tuple[float, Callable[[], None]]] = deque()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="duo-delay", daemon=True)

    def start(self, listener: Listener) -> None:
        self._listener = listener
        self._thread.start()
        self._bus.start(self)

    def send(self, to: str, message: Message) -> None:
        self._later(lambda: self._bus.send(to, message))

    def describe(self, presence: Presence) -> None:
        self._bus.describe(presence)

    def close(self) -> None:
        """Messages on their way are lost."""
        with self._wake:
            self._closed = True
            self._wake.notify_all()
        if self._thread.is_alive():
            self._thread.join()
        self._bus.close()

    def received(self, message: Message) -> None:
        listener = self._listener
        if listener is not None:
            self._later(lambda: listener.received(message))

    def peers(self, present: Sequence[Presence]) -> None:
        listener, everybody = self._listener, tuple(present)
        if listener is not None:
            self._later(lambda: listener.peers(everybody))

    def _later(self, action: Callable[[], None]) -> None:
        with self._wake:
            self._due.append((time.monotonic() + self._latency_s, action))
            self._wake.notify_all()

    def _run(self) -> None:
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._due or self._closed)
                if self._closed:
                    return
                due, action = self._due.popleft()
                self._wake.wait_for(lambda: self._closed, max(0.0, due - time.monotonic()))
                if self._closed:
                    return
            action()
