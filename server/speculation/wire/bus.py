"""The seam to the other processes of a pool: `streams.py` is Redis, `tests/memory_bus.py` a fake."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from server.speculation.wire.messages import Message
from server.speculation.wire.presence import Presence


@dataclass(slots=True)
class BusCounters:
    """Messages, never reset. dropped: could not be sent (bus down, too much queued, too large, peer unknown);
    undecodable: arrived, but not as a message of this version within its bounds."""

    sent: int = 0
    received: int = 0
    dropped: int = 0
    undecodable: int = 0


class Listener(Protocol):
    """What a bus calls, on its own reader thread. Must return quickly and never raise."""

    def received(self, message: Message) -> None:
        """One message arrived in this process's inbox (already decoded and within its bounds)."""
        ...

    def peers(self, present: Sequence[Presence]) -> None:
        """Everybody of the other role who is alive now. Called whenever that set changes; an empty
        sequence while the bus is disconnected, so that a reconnection is seen as everybody joining."""
        ...


class Bus(Protocol):
    """Connected in the background; losing the server costs messages, never an exception."""

    def start(self, listener: Listener) -> None:
        """Announce this process and begin to read its inbox."""
        ...

    def send(self, to: str, message: Message) -> None:
        """Queue a message for the peer with this id. Never blocks; dropped when the bus is down, when
        too much is queued, or when the peer is unknown. Safe from any thread."""
        ...

    def describe(self, presence: Presence) -> None:
        """Replace what this process says of itself (a newly measured td, say)."""
        ...

    def close(self) -> None:
        """Take the presence and the inbox off the bus, and end the threads."""
        ...
