"""What a bus has done so far, for /health, metrics and tests."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class BusCounters:
    """Messages, not bytes. Written by the bus, read by anybody, never reset.

    dropped: could not be sent (bus down, too much queued, too large, peer unknown). undecodable: arrived,
    but not as a message of this version within its bounds.
    """

    sent: int = 0
    received: int = 0
    dropped: int = 0
    undecodable: int = 0
