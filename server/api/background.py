"""Run replies that no client waits for, and write each to a log."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from server.replies.reply_log import ReplyLog
from server.replies.store import Owner, ReplyStore

if TYPE_CHECKING:
    from server.api.answer import Answer

Keep: TypeAlias = Callable[[], None]

ENDING_S = 5.0
"""Seconds for cancelled replies to write their last event, as many as uvicorn gives open connections."""


class BackgroundReplies:
    """The replies of this process that run without a client. Use on the event loop only."""

    def __init__(self) -> None:
        self._running: dict[tuple[str, str], tuple[Answer, asyncio.Task[None]]] = {}
        self._left_in: ReplyStore | None = None  # the argument of hand_over(); None before the call
        self._guarded: set[tuple[str, str]] = set()  # replies that another process can continue

    def __len__(self) -> int:
        return len(self._running)

    def start(
        self, owner: Owner, id: str, answer: Answer, log: ReplyLog, keep: Keep | None = None
    ) -> asyncio.Task[None]:
        """Start a task that writes an answer to its log, and return the task.

        keep: Called before the log ends.
        """
        salt = owner.salt
        task = asyncio.ensure_future(answer.write_to(log, keep))
        self._running[salt, id] = answer, task
        if log.guarded:
            self._guarded.add((salt, id))

        def forget(_: object) -> None:
            if self._running.get((salt, id)) == (answer, task):  # else this process has taken it up again
                del self._running[salt, id]
                self._guarded.discard((salt, id))

        task.add_done_callback(forget)
        if log.left:  # another process took it up before this one began to write
            self.abandon(salt, id)
        if self._left_in is not None:
            self.hand_over(self._left_in)
        return task

    def abandon(self, salt: str, id: str) -> None:
        """End a reply that another process continues."""
        if found := self._running.get((salt, id)):
            found[0].abandon()

    def hand_over(self, replies: ReplyStore) -> None:
        """Stop all replies that another process can continue, and leave their logs to other processes.

        Replies that begin later are left to other processes too. Connections of this process stop reading
        the logs that it leaves, and logs that other processes write. replies: The store of the logs.
        """
        self._left_in = replies
        for salt, id in list(self._guarded):
            self.abandon(salt, id)
            replies.leave(salt, id)
        replies.end_readers()

    def stop(self, salt: str, id: str) -> asyncio.Task[None] | None:
        """Cancel a reply at its owner's request; return its task, None if it is not running."""
        answer, task = self._running.get((salt, id), (None, None))
        if answer is not None:
            answer.stop()
        return task

    def forget(self, salt: str, id: str) -> None:
        """Note that the owner has deleted a reply: if it is still running, it is not stored at its end."""
        if found := self._running.get((salt, id)):
            found[0].forgotten = True

    async def cancel(self, salt: str, id: str) -> bool:
        """Cancel a reply and wait up to ENDING_S until its log ends; return False if it is not running."""
        if (task := self.stop(salt, id)) is None:
            return False
        await asyncio.wait([task], timeout=ENDING_S)
        return True

    async def close(self) -> None:
        """Wait up to ENDING_S until all replies have ended. Before this call, tell the engine to end them."""
        if tasks := [task for _, task in self._running.values()]:
            await asyncio.wait(tasks, timeout=ENDING_S)
