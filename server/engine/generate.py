"""Interface between HTTP and engine: submit a request, read its events, cancel it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from server.engine.events import Event
from server.engine.request import GenerationRequest


class Generation(Protocol):
    """One submitted request. Iterate it once, on the event loop that submitted it."""

    def __aiter__(self) -> AsyncIterator[Sequence[Event]]:
        """Yield, in order, all events that have arrived since the previous yield.

        The sequence is empty only if wake_in() resumed the iteration. Ends after Finished or Failed.
        """
        ...

    def wake_in(self, seconds: float) -> None:
        """Resume the iteration after this time even if there are no events. The latest call counts."""
        ...

    def cancel(self, keep: int | None = None) -> None:
        """Stop within one step. May be called at any time, and twice.

        The reply is its first `keep` generated tokens (None: all). Later tokens, such as those after a stop
        string, are not cached.
        """
        ...


class Generator(Protocol):
    """Generates with a model that it owns. `EngineThread` implements it."""

    def submit(self, request: GenerationRequest) -> Generation:
        """Queue a request.

        Raises:
            BusyError: The queue is full or the server drains.
            ContextOverflowError: The prompt leaves no room for a single token.
        """
        ...
