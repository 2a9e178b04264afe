"""Delay messages by a fixed latency each way, for measurements."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from queue import SimpleQueue

from server.speculation.wire.bus import Bus, Listener
from server.speculation.wire.messages import Message
from server.speculation.wire.presence import Presence


class DelayedBus:
    """A Bus that delays the messages of another bus by latency_s seconds each way, and keeps their order.

    It is the other bus's Listener.
    """

    def __init__(self, bus: Bus, latency_s: float) -> None:
        self._bus = bus
        self._latency_s = latency_s
        self._due: SimpleQueue[tuple[float, Callable[[], None]]] = SimpleQueue()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run_delayed, name="duo-delay", daemon=True)

    def start(self, listener: Listener) -> None:
        self._listener = listener
        self._thread.start()
        self._bus.start(self)

    def send(self, to: str, message: Message) -> None:
        self._call_later(lambda: self._bus.send(to, message))

    def describe(self, presence: Presence) -> None:
        self._bus.describe(presence)

    def close(self) -> None:
        """Close the bus; delayed messages are lost."""
        self._closed.set()
        self._call_later(lambda: None)  # wakes the thread if its queue is empty
        if self._thread.is_alive():
            self._thread.join()
        self._bus.close()

    def received(self, message: Message) -> None:
        self._call_later(lambda: self._listener.received(message))

    def peers(self, present: Sequence[Presence]) -> None:
        everybody = tuple(present)
        self._call_later(lambda: self._listener.peers(everybody))

    def _call_later(self, action: Callable[[], None]) -> None:
        self._due.put((time.monotonic() + self._latency_s, action))

    def _run_delayed(self) -> None:
        while True:
            due, action = self._due.get()
            if self._closed.wait(max(0.0, due - time.monotonic())):
                return
            action()
