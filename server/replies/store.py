"""Interface between the API and the stores of replies: stored responses, conversations and logs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

from server.replies.kept import Json, StoredResponse
from server.replies.reply_log import LogReader, ReplyLog

ORPHAN_POLL_S = 0.5
"""Seconds between two polls for orphans. Half: an idle pool has twice the commands; gaps are 1/6 shorter."""

Kept: TypeAlias = Literal["everywhere", "here", "nowhere"]
"""Where a response is kept if there is no outage.

everywhere: all leads of the store find it.
here: only this process keeps it, since it is too large for the store.
nowhere: it is larger than what one API key may store.
"""
Change: TypeAlias = Callable[[StoredResponse], StoredResponse]


@dataclass(frozen=True, slots=True)
class Owner:
    """The owner of a reply: requests with `salt` find it, and it counts towards the limits of `tenant`."""

    salt: str = ""
    tenant: str = ""


@dataclass(frozen=True, slots=True)
class Orphan:
    """An unfinished reply that this process has taken up: only it may write the log from now on."""

    owner: Owner
    id: str
    recipe: Json  # the recipe passed to begin_log()
    states: Sequence[Json]  # the states passed to the log's append(), in order
    log: ReplyLog  # contains all events that were stored


class ReplyStore(Protocol):
    """Keeps responses and logs. For the event loop only. get() finds whatever was put before the call.

    Async methods, except flush() and close(), raise StoreError if the store does not answer. `salt` is that
    of the reply's owner (Owner): with another salt, the reply is not found.
    """

    members: Sequence[str] | None
    """Names of the living leads that take up each other's replies; None: no lead does."""

    def put(self, owner: Owner, stored: StoredResponse) -> Kept:
        """Keep a response under its id, with the log of this id. Never fails, and never waits."""
        ...

    async def get(self, salt: str, id: str) -> StoredResponse | None: ...

    async def item(self, salt: str, id: str) -> Json | None:
        """Return the item with this id from the output or input of a stored response."""
        ...

    async def delete(self, owner: Owner, id: str) -> bool:
        """Forget a response and its log; return True if it was there."""
        ...

    async def change(self, owner: Owner, id: str, change: Change) -> StoredResponse | None:
        """Replace a response by change(response) atomically, and return the new one.

        Returns:
            None if there is no such response.

        Raises:
            StoreError: Also if the changed response is too large.
        """
        ...

    def begin_log(self, owner: Owner, id: str, recipe: Json | None = None) -> ReplyLog:
        """Begin a reply's log and return it. Readers find it by its id at once.

        Args:
            owner: The reply's owner.
            id: The reply's id.
            recipe: Data that another process of the pool needs to continue the reply; None: none can.
        """
        ...

    async def take_up(self, most: int) -> Sequence[Orphan]:
        """Take up at most `most` replies whose processes are gone. Call this every ORPHAN_POLL_S."""
        ...

    def end_readers(self) -> None:
        """End all readers of logs that other processes write, because this process ends."""
        ...

    def leave(self, salt: str, id: str) -> None:
        """Leave a log that this process writes, so that another process of the pool may continue it."""
        ...

    async def log(self, salt: str, id: str) -> LogReader | None: ...

    async def cancel(self, salt: str, id: str) -> bool:
        """Ask the process that writes this log to cancel its reply; return False if no process writes it."""
        ...

    async def is_written(self, salt: str, id: str) -> bool:
        """Return True if a process writes this log."""
        ...

    async def flush(self) -> None:
        """Wait until every put so far has succeeded or failed."""
        ...

    async def close(self) -> None:
        """Wait until every put so far has succeeded or failed, and release the store's connections."""
        ...
