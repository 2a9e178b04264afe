"""Events of logs, and how tests read them."""

from __future__ import annotations

from server.replies.reply_log import LogReader


def event(number: int) -> bytes:
    return b'event: x\ndata: {"sequence_number":%d}\n\n' % number


def events(*numbers: int) -> bytes:
    return b"".join(map(event, numbers))


async def read(log: LogReader, after: int = -1) -> bytes:
    """Return what a reader gets until the log ends."""
    return b"".join([chunk async for chunk in log.events(after)])
