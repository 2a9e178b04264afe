"""Handles of what goes on while nobody waits for it: few, and not for ever."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from typing import Any, Protocol

from server.api.rpc.protocol import UnknownHandleError
from server.errors import BusyError

MAX_HANDLES = 64
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

    def __init__(self, *, most: int = MAX_HANDLES, kept_s: float = KEPT_S) -> None:
        self._most = most
        self._kept_s = kept_s
        self._entries: dict[str, tuple[Held, asyncio.TimerHandle]] = {}  # and what cancels it

    def __len__(self) -> int:
        return len(self._entries)

    def open(self, begin: Callable[[], Held], owner: str = "") -> str:
        """Begin something, and hold it. Returns its handle, which cannot be guessed; others ask with the
        owner in front of it. Raises BusyError, without beginning, when there are enough; and what begin()
        raises."""
        if len(self._entries) >= self._most:
            raise BusyError(f"there are {self._most} async completions already: poll or cancel one")
        handle = secrets.token_hex(12)
        self._keep(owner + handle, begin())
        return handle

    def news(self, handle: str) -> tuple[list[dict[str, Any]], bool]:
        """What there is to tell of it. Forgets it once the end is told, or the error that this raises. Raises
        UnknownHandleError."""
        held = self._take(handle)
        updates, finished = held.news()
        if not finished:
            self._keep(handle, held)
        return updates, finished

    def close(self, handle: str) -> None:
        """Forget it, and cancel what goes on. Raises UnknownHandleError."""
        self._take(handle).cancel()

    def close_all(self) -> None:
        for handle in list(self._entries):
            self.close(handle)

    def _keep(self, handle: str, held: Held) -> None:
        timer = asyncio.get_running_loop().call_later(self._kept_s, self.close, handle)
        self._entries[handle] = held, timer

    def _take(self, handle: str) -> Held:
        if handle not in self._entries:
            raise UnknownHandleError(
                "handle",
                "no async completion has it, or not any more; without a poll in "
                f"{self._kept_s:g} s they are cancelled",
            )
        held, timer = self._entries.pop(handle)
        timer.cancel()
        return held
