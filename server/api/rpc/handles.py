"""Handles of asynchronous completions: a bounded number, which expire."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from server.api.rpc.protocol import UnknownHandleError
from server.errors import BusyError

MOST = 64
KEPT_S = 120.0
"""How long nobody may ask for it before it is cancelled."""


class Held(Protocol):
    """Something that goes on by itself."""

    def news(self) -> tuple[list[dict[str, Any]], bool]:
        """Updates since the last call, and whether they were the last. Raises the error it ended with."""
        ...

    def cancel(self) -> None:
        """Safe twice, and after the end."""
        ...


@dataclass(slots=True)
class _Entry:
    held: Held
    asked_at: float


class Handles:
    """Cancels and drops what is not polled for kept_s, by a timer. For one event loop."""

    def __init__(
        self, *, most: int = MOST, kept_s: float = KEPT_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._most = most
        self._kept_s = kept_s
        self._clock = clock
        self._entries: dict[str, _Entry] = {}
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._entries)

    def open(self, begin: Callable[[], Held]) -> str:
        """Calls begin() and holds the result. Returns its handle, which cannot be guessed. Raises BusyError
        before begin() if there are too many, and what begin() raises."""
        self.expire()
        if len(self._entries) >= self._most:
            raise BusyError(f"there are {self._most} async completions already: poll or cancel one")
        handle = secrets.token_hex(12)
        self._entries[handle] = _Entry(begin(), self._clock())
        self._wind()
        return handle

    def _get(self, handle: str) -> Held:
        """Counts as a poll. Raises UnknownHandleError."""
        self.expire()
        entry = self._entries.get(handle)
        if entry is None:
            raise UnknownHandleError(
                "handle: no async completion has it, or not any more; without a poll in "
                f"{self._kept_s:g} s they are cancelled",
                param="handle",
            )
        entry.asked_at = self._clock()
        return entry.held

    def news(self, handle: str) -> tuple[list[dict[str, Any]], bool]:
        """What Held.news returns or raises. Drops it after its end or error. Raises UnknownHandleError."""
        held = self._get(handle)
        finished = True
        try:
            updates, finished = held.news()
        finally:
            if finished:
                del self._entries[handle]
        return updates, finished

    def close(self, handle: str) -> None:
        """Cancel and drop it. Raises UnknownHandleError."""
        held = self._get(handle)
        del self._entries[handle]
        held.cancel()

    def close_all(self) -> None:
        for entry in self._entries.values():
            entry.held.cancel()
        self._entries.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def expire(self) -> None:
        """Cancel and drop what was not polled in time."""
        due = self._clock() - self._kept_s
        for handle, entry in list(self._entries.items()):
            if entry.asked_at <= due:
                del self._entries[handle]
                entry.held.cancel()

    def _wind(self) -> None:
        if self._timer is None and self._entries:
            next_at = min(entry.asked_at for entry in self._entries.values()) + self._kept_s
            delay_s = max(0.0, next_at - self._clock())
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._ring)

    def _ring(self) -> None:
        self._timer = None
        self.expire()
        self._wind()
