"""Deliver the events of one generation from the engine's thread to its reader on the event loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable

from server.engine.events import Event, Failed, Finished
from server.engine.request_account import CURRENT
from server.errors import TimeLimitError, UnreadError
from server.tenants import Place

logger = logging.getLogger("duo.engine")

MOST_UNREAD = 8192  # unread events at which a generation fails: 1 MB, or 25 MB with 20 logprobs per token
ENDS = (Finished, Failed)  # events that end a generation


class LiveGeneration:
    """A generation of an engine on another thread. Implements Generation; use it on the event loop."""

    def __init__(self, id: int, cancel: Callable[[int, int | None], None], place: Place | None) -> None:
        """Begin a generation.

        Args:
            id: Id of its session.
            cancel: Calls Engine.cancel() on the engine's thread.
            place: Its place in the queue; None if it only precomputes.
        """
        self.id = id
        self.place = place
        self.account = CURRENT.get()
        self._cancel = cancel
        self._unread: list[Event] = []
        self._arrived = asyncio.Event()
        self._ended = False
        self._timer: asyncio.TimerHandle | None = None
        self._waking: asyncio.TimerHandle | None = None

    def __aiter__(self) -> AsyncIterator[list[Event]]:
        return self

    async def __anext__(self) -> list[Event]:
        if self._ended and not self._unread:
            raise StopAsyncIteration
        await self._arrived.wait()
        self._arrived.clear()
        events, self._unread = self._unread, []
        return events

    def wake_in(self, seconds: float) -> None:
        if self._waking is not None:
            self._waking.cancel()
        if not self._ended:
            self._waking = asyncio.get_running_loop().call_later(seconds, self._arrived.set)

    @property
    def precompute(self) -> bool:
        return self.place is None

    def cancel(self, keep: int | None = None) -> None:
        self._cancel(self.id, keep)

    def expire_in(self, seconds: float) -> None:
        """Make the generation fail after this time unless it has ended, even if the engine is stuck."""
        self._timer = asyncio.get_running_loop().call_later(seconds, self._expire_after, seconds)

    def deliver(self, event: Event) -> None:
        """Deliver an event; ignored after the final one. Fails the generation if its reader lags too far."""
        if self._ended:
            return
        if len(self._unread) >= MOST_UNREAD and not isinstance(event, ENDS):
            event = Failed(UnreadError(len(self._unread)))
            self.cancel()
        self._ended = isinstance(event, ENDS)
        if self._ended and self._timer is not None:
            self._timer.cancel()
        if self.account is not None:
            self.account.see(event)
            if isinstance(event, Failed) and event.error.status >= 500:
                fields = {"request_id": self.account.id}
                logger.error("%s failed: %s", self.account.id, event.error, extra={"fields": fields})
        self._unread.append(event)
        self._arrived.set()

    def _expire_after(self, seconds: float) -> None:
        self.deliver(Failed(TimeLimitError(seconds)))
        self.cancel()
