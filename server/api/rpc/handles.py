"""Handles of work in the background. Their number is limited, and so is the time between two polls."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from typing import Any, Protocol

from server.api.rpc.protocol import UnknownHandleError
from server.errors import BusyError

MAX_HANDLES = 64
KEPT_S = 120.0
"""Seconds without a poll after which work is cancelled."""


class Held(Protocol):
    """Work in the background, which can be polled and cancelled."""

    def updates(self) -> tuple[list[dict[str, Any]], bool]:
        """Return the updates since the last call, and True if they are the last. Raises the work's error."""
        ...

    def cancel(self) -> None:
        """Stop the work. May be called twice, and after its end."""
        ...


class Handles:
    """Work in the background, by its handle. Use on the event loop only.

    A timer cancels work that is not polled for kept_s seconds, and forgets its handle.
    """

    def __init__(self, *, most: int = MAX_HANDLES, kept_s: float = KEPT_S) -> None:
        self._most = most
        self._kept_s = kept_s
        self._entries: dict[str, tuple[Held, asyncio.TimerHandle]] = {}  # each with the timer that cancels it

    def __len__(self) -> int:
        return len(self._entries)

    def open(self, begin: Callable[[], Held], owner: str = "") -> str:
        """Begin work; return an unguessable handle. The other methods take the owner followed by the handle.

        Raises:
            BusyError: There are too many handles; nothing was begun.
        """
        if len(self._entries) >= self._most:
            raise BusyError(f"there are {self._most} async completions already: poll or cancel one")
        handle = secrets.token_hex(12)
        self._keep_entry(owner + handle, begin())
        return handle

    def updates(self, handle: str) -> tuple[list[dict[str, Any]], bool]:
        """Return new updates, and True if they are the last; if so, forget the handle.

        Raises:
            UnknownHandleError: There is no such handle.
        """
        held = self._take_entry(handle)
        updates, finished = held.updates()
        if not finished:
            self._keep_entry(handle, held)
        return updates, finished

    def close(self, handle: str) -> None:
        """Cancel the work and forget the handle. Raises UnknownHandleError."""
        self._take_entry(handle).cancel()

    def close_all(self) -> None:
        for handle in list(self._entries):
            self.close(handle)

    def _keep_entry(self, handle: str, held: Held) -> None:
        timer = asyncio.get_running_loop().call_later(self._kept_s, self.close, handle)
        self._entries[handle] = held, timer

    def _take_entry(self, handle: str) -> Held:
        if handle not in self._entries:
            raise UnknownHandleError(
                "handle",
                "no async completion has it (any more); without a poll within "
                f"{self._kept_s:g} s it is cancelled",
            )
        held, timer = self._entries.pop(handle)
        timer.cancel()
        return held
