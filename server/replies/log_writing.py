"""Write the logs of this process's replies to Redis, many events in one round trip. For the link's thread."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import redis

from server.errors import StoreError
from server.replies.redis_names import CANCEL, END, EVENTS, WRITING, ReplyNames
from server.replies.reply_log import ReplyLog

LEASE_MS = 3000
"""Milliseconds after which a writer that says nothing counts as gone: six missed renewals."""
RENEWED_S = 0.5  # between two renewals of leases; a cancellation by another lead waits up to this long


class Attempt(Protocol):
    def __call__(self, work: Callable[[redis.Redis], list[_Written]], /) -> list[_Written]: ...


class Ended(Protocol):
    """Called once the writing of a log has ended; `kept`: Redis has all of the log."""

    def __call__(self, *, kept: bool) -> None: ...


@dataclass(slots=True)
class _Written:
    """A log that is being written to Redis."""

    salt: str
    id: str
    log: ReplyLog
    ended: Ended
    n_sent: int = 0  # chunks that Redis has been sent


@dataclass(frozen=True, slots=True)
class _Part:
    """The part of a log that existed at one moment."""

    of: _Written
    ended: bool  # the log has ended; read before `n`, so that no chunk comes after the n
    n: int  # chunks of the log

    @property
    def is_due(self) -> bool:
        return self.ended or self.n > self.of.n_sent


class LogWriting:
    """All logs that this process writes."""

    attempt: Attempt

    def __init__(self, names: ReplyNames, ttl_ms: int, cancel: Callable[[str, str], None]) -> None:
        """Begin without logs.

        Args:
            names: Names of the pool's keys.
            ttl_ms: Milliseconds for which a log is kept.
            cancel: Called with salt and id of a reply that another lead asks to cancel.
        """
        self._names = names
        self._ttl_ms = ttl_ms
        self._cancel = cancel
        self._logs: list[_Written] = []
        self._renewed_at = float("-inf")

    def begin(self, salt: str, id: str, log: ReplyLog, ended: Ended) -> None:
        """Write this log from now on, until its end or until Redis has lost a part of it."""
        self._logs.append(_Written(salt, id, log, ended))
        self._renewed_at = float("-inf")

    def beat(self, client: redis.Redis) -> bool:
        """Write what is new, and renew the leases. Return True if a log has not ended."""
        if not self._logs:
            return False
        renews = time.monotonic() - self._renewed_at >= RENEWED_S
        parts = [_Part(one, one.log.ended, len(one.log.last)) for one in self._logs]
        due = parts if renews else [part for part in parts if part.is_due]
        if not due:
            return True
        try:
            lost = self.attempt(lambda client: self._write(client, due, renews=renews))
        except StoreError:
            lost = [part.of for part in due]
        else:
            self._renewed_at = time.monotonic() if renews else self._renewed_at
        self._note_written(due, lost)
        return bool(self._logs)

    def _note_written(self, due: list[_Part], lost: list[_Written]) -> None:
        for part in due:
            part.of.n_sent = part.n
            if part.ended or part.of in lost:
                self._logs.remove(part.of)
                part.of.ended(kept=part.of not in lost)

    def _write(self, client: redis.Redis, due: list[_Part], *, renews: bool) -> list[_Written]:
        """Write these parts of logs to Redis, and return the logs of which Redis has lost an earlier part.

        renews: True if the keys by which others see that this process writes the logs are to live longer.
        """
        with client.pipeline(transaction=True) as pipe:
            for part in due:
                self._queue_part(pipe, part, renews=renews)
            replies = iter(pipe.execute(raise_on_error=False))
        lost: list[_Written] = []
        for part in due:
            log, salt, id = part.of, part.of.salt, part.of.id
            if part.n > log.n_sent:
                if _checked(next(replies)) is None:
                    lost.append(log)
                _checked(next(replies))
            if part.ended:
                _checked(next(replies))
                _checked(next(replies))
            elif renews:
                said = _checked(next(replies))
                if said is None:
                    client.set(self._names.writer(salt, id), WRITING, px=LEASE_MS)
                elif said == CANCEL:
                    self._cancel(salt, id)
        return lost

    def _queue_part(self, pipe: Any, part: _Part, *, renews: bool) -> None:
        one, log = part.of, part.of.log
        key, writer = self._names.log(one.salt, one.id), self._names.writer(one.salt, one.id)
        if part.n > one.n_sent:
            events = b"".join(log.chunks[one.n_sent : part.n])
            id = f"{log.last[part.n - 1] + 1}-0"
            pipe.xadd(key, {EVENTS: events}, id=id, nomkstream=one.n_sent > 0)
            pipe.pexpire(key, self._ttl_ms)
        if part.ended:
            pipe.xadd(key, {END: b""}, id=f"{log.n_events}-1", nomkstream=True)
            pipe.unlink(writer)
        elif renews:
            pipe.getex(writer, px=LEASE_MS)


def _checked(reply: Any) -> Any:
    """Return a reply of Redis, or raise it if it is an error.

    An entry that exists already is no error: an earlier try wrote it, and its answer was lost.
    """
    if isinstance(reply, Exception):
        if "equal or smaller" in str(reply):
            return True
        raise reply
    return reply
