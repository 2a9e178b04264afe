"""Handles of what goes on while nobody waits for it: few, and not for ever."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable
from typing import Any, Protocol

from server.api.rpc.protocol import UnknownHandleError
from server.errors import BusyError

MOST = 64
KEPT_S = 120.0
"""How long nobody may ask for it before it is cancelled."""


class Held(Protocol):
    """Something that goes on by itself."""

    def news(self) -> tuple[list[dict[str, Any]], bool]:
        """What there is since the last time, and whether it was the last. Raises the error it ended with."""
        ...

    def cancel(self) -> None:
        """Nobody will ask for it any more. Safe twice, and after its end."""
        ...


class Handles:
    """What is not asked for within kept_s is cancelled and forgotten, by a timer of the event loop. For that
    loop only."""

    def __init__(
        self, *, most: int = MOST, kept_s: float = KEPT_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._most = most
        self._kept_s = kept_s
        self._clock = clock
        self._entries: dict[str, tuple[Held, float]] = {}  # and when somebody last asked
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._entries)

    def open(self, begin: Callable[[], Held]) -> str:
        """Begin something, and hold it. Returns its handle, which cannot be guessed. Raises BusyError,
        without beginning, when there are enough; and what begin() raises."""
        self._expire()
        if len(self._entries) >= self._most:
            raise BusyError(f"there are {self._most} async completions already: poll or cancel one")
        handle = secrets.token_hex(12)
        self._entries[handle] = begin(), self._clock()
        self._wind()
        return handle

    def _get(self, handle: str) -> Held:
        """Somebody asks for it. Raises UnknownHandleError."""
        self._expire()
        if handle not in self._entries:
            raise UnknownHandleError(
                "handle: no async completion has it, or not any more; without a poll in "
                f"{self._kept_s:g} s they are cancelled",
                param="handle",
            )
        held, _ = self._entries[handle]
        self._entries[handle] = held, self._clock()
        return held

    def news(self, handle: str) -> tuple[list[dict[str, Any]], bool]:
        """What there is to tell of it. Forgets it once the end is told, or the error that this raises. Raises
        UnknownHandleError."""
        held = self._get(handle)
        finished = True
        try:
            updates, finished = held.news()
        finally:
            if finished:
                del self._entries[handle]
        return updates, finished

    def close(self, handle: str) -> None:
        """Forget it, and cancel what goes on. Raises UnknownHandleError."""
        held = self._get(handle)
        del self._entries[handle]
        held.cancel()

    def close_all(self) -> None:
        for held, _ in self._entries.values():
            held.cancel()
        self._entries.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _expire(self) -> None:
        due = self._clock() - self._kept_s
        for handle, (held, asked_at) in list(self._entries.items()):
            if asked_at <= due:
                del self._entries[handle]
                held.cancel()

    def _wind(self) -> None:
        if self._timer is None and self._entries:
            next_at = min(asked_at for _, asked_at in self._entries.values()) + self._kept_s
            delay_s = max(0.0, next_at - self._clock())
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._ring)

    def _ring(self) -> None:
        self._timer = None
        self._expire()
        self._wind()
