"""Interface to other processes of a pool; implemented for Redis by `streams.py`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from server.speculation.wire.messages import Message
from server.speculation.wire.presence import Presence


class Listener(Protocol):
    """Receiver of a bus's messages, called on its reader thread. Must return quickly and never raise."""

    def received(self, message: Message) -> None:
        """Handle a message from this process's inbox; it is decoded, and no field exceeds its limits."""
        ...

    def peers(self, present: Sequence[Presence]) -> None:
        """Handle a change of the live processes of the other role: `present` has all of them.

        `present` is empty while the bus is disconnected. So after a reconnection all processes seem to join.
        """
        ...


class Bus(Protocol):
    """A connection to other processes, kept by background threads.

    While the server is lost, messages are lost, but nothing raises.
    """

    def start(self, listener: Listener) -> None:
        """Announce this process and begin to read its inbox."""
        ...

    def send(self, to: str, message: Message) -> None:
        """Queue a message for the peer with this id. Never blocks; safe from any thread.

        The message is dropped if the bus is down, the queue is full, or the peer is unknown.
        """
        ...

    def describe(self, presence: Presence) -> None:
        """Replace the description of this process that peers see, for example after timing a guess."""
        ...

    def close(self) -> None:
        """Remove the presence and the inbox from the bus, and end the threads."""
        ...
