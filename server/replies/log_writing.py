"""Write the logs of this process's replies to Redis, many events in one round trip. For the link's thread."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

import redis
from redis.exceptions import WatchError

from server.errors import StoreError
from server.replies.redis_names import (
    CANCEL,
    END,
    EVENTS,
    LEFT,
    RECIPE,
    STATES,
    ReplyNames,
    entry_id,
    of_entry,
    scoped_id_of,
)
from server.replies.reply_log import ReplyLog

LEASE_MS = 3000
"""Milliseconds after which others may take up a log whose writer renews no lease: six missed renewals."""
AWAITED_MS = 30_000
"""Milliseconds after the last renewal within which a log may be taken up; must cover a lead's restart.

Longer than PATIENCE_S and LEASE_MS, so that readers do not give up a log with a living writer.
"""
RENEWED_S = 0.5  # seconds between two renewals of leases: the maximum delay of another lead's cancellation

Outcome: TypeAlias = Literal["goes on", "kept", "lost", "fenced", "left"]
"""The state of writing a log.

kept: Redis has the whole log. lost: Redis has lost a part. fenced: another process has taken the log up.
left: this process has left the log to others.
"""
_REFUSED = object()
"""Answer of Redis to an entry whose id is not larger than the last entry's."""


class Attempt(Protocol):
    def __call__(self, work: Callable[[redis.Redis], Sequence[Outcome]], /) -> Sequence[Outcome]: ...


@dataclass(slots=True)
class Written:
    """A log that is being written to Redis."""

    salt: str
    id: str
    log: ReplyLog
    recipe: bytes | None = None  # see ReplyStore.begin_log()
    term: int = 0
    n_sent: int = 0  # number of chunks sent to Redis

    @property
    def scoped_id(self) -> str:
        return scoped_id_of(self.salt, self.id)


class WriteResult(NamedTuple):
    """Result of a write for one log."""

    of: Written
    n: int  # number of chunks that Redis has
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class _Part:
    """The part of a log that existed at one moment."""

    of: Written
    ended: bool  # the log has ended; read before `n`, so that no chunk follows the first n
    left: bool  # this process has left the log to others
    n: int  # number of chunks of the log

    @property
    def is_due(self) -> bool:
        return self.ended or self.left or self.n > self.of.n_sent


class LogWriting:
    """All logs that this process writes to Redis."""

    attempt: Attempt

    def __init__(
        self,
        names: ReplyNames,
        group: str,
        ttl_ms: int,
        cancel: Callable[[str, str], None],
        on_written: Callable[[Sequence[WriteResult]], None],
    ) -> None:
        """Begin without logs.

        Args:
            names: Names of the pool's keys.
            group: Digest of model and options, equal for all leads that may take up this one's replies.
            ttl_ms: Milliseconds for which a log is kept.
            cancel: Called with salt and id of a reply that another lead asks to cancel.
            on_written: Called with the result for each log of a write, on the link's thread.
        """
        self._names = names
        self._open = names.open(group)
        self._ttl_ms = ttl_ms
        self._cancel = cancel
        self._on_written = on_written
        self._logs: list[Written] = []
        self._withdrawn: list[Written] = []  # lost logs, which others must not take up
        self._given_up: set[tuple[str, str]] = set()
        self._renewed_at = float("-inf")

    @property
    def scoped_ids(self) -> set[str]:
        """Return the scoped ids of all logs that are being written."""
        return {one.scoped_id for one in self._logs}

    def begin(self, written: Written) -> None:
        """Write this log from now on, until its end or until Redis has lost a part of it."""
        self._logs.append(written)
        self._given_up.discard((written.salt, written.id))
        self._renewed_at = float("-inf")

    def gave_up(self, salt: str, id: str) -> bool:
        """Return True if this process gave up the log and its response."""
        return (salt, id) in self._given_up

    def write_new(self, client: redis.Redis) -> bool:
        """Write new events, and renew leases that are due. Return True if another call is needed."""
        if self._withdrawn:
            self._withdraw()
        if not self._logs:
            return bool(self._withdrawn)
        renews = time.monotonic() - self._renewed_at >= RENEWED_S
        parts = [_Part(one, one.log.ended, one.log.left, len(one.log.last)) for one in self._logs]
        due = parts if renews else [part for part in parts if part.is_due]
        if not due:
            return True
        try:
            outcomes = self.attempt(lambda client: self._write(client, due, renews=renews))
        except StoreError:  # readers of a left log have no more of it than Redis
            due = [replace(part, n=part.of.n_sent) if part.left else part for part in due]
            outcomes: Sequence[Outcome] = ["left" if part.left else "lost" for part in due]
        else:
            self._renewed_at = time.monotonic() if renews else self._renewed_at
        for part, outcome in zip(due, outcomes, strict=True):
            self._note(part, outcome)
        self._on_written(
            [WriteResult(part.of, part.n, outcome) for part, outcome in zip(due, outcomes, strict=True)]
        )
        return bool(self._logs or self._withdrawn)

    def _note(self, part: _Part, outcome: Outcome) -> None:
        one, part.of.n_sent = part.of, part.n
        if outcome != "goes on":
            self._logs.remove(one)
        if one.recipe is not None and outcome in ("lost", "fenced", "left"):
            self._given_up.add((one.salt, one.id))
            if outcome == "lost":
                self._withdrawn.append(one)

    def _withdraw(self) -> None:
        """Make lost logs unavailable to other leads, because their readers have seen more than Redis has."""

        def withdraw(client: redis.Redis) -> list[Outcome]:
            for one in self._withdrawn:
                if not self._is_fenced(client, one):
                    client.hdel(self._open, one.scoped_id)
                    client.unlink(self._names.awaited(one.salt, one.id))
                    self._given_up.discard((one.salt, one.id))
            return []

        try:
            self.attempt(withdraw)
        except StoreError:
            return
        self._withdrawn.clear()

    def _write(self, client: redis.Redis, due: Sequence[_Part], *, renews: bool) -> list[Outcome]:
        """Write these parts of logs to Redis, and return the outcome of each.

        renews: True to extend the leases, the keys that show others that this process writes the logs.
        """
        with client.pipeline(transaction=True) as pipe:
            queued = [self._queue_part(pipe, part, renews=renews) for part in due]
            replies = iter(pipe.execute(raise_on_error=False))
        answers = [{kind: _checked(next(replies)) for kind in kinds} for kinds in queued]
        return [self._finish_part(client, part, answer) for part, answer in zip(due, answers, strict=True)]

    def _queue_part(self, pipe: Any, part: _Part, *, renews: bool) -> list[str]:
        """Queue the commands that write a part, and return their names. `renews`: also renew its keys."""
        one, log, queued = part.of, part.of.log, list[str]()
        key = self._names.log(one.salt, one.id)
        if part.n > one.n_sent:
            fields = {EVENTS: b"".join(log.chunks[one.n_sent : part.n])}
            if states := [state for state in log.states[one.n_sent : part.n] if state]:
                fields[STATES] = b"\n".join(states)
            if one.recipe is not None and not one.n_sent:
                fields[RECIPE] = one.recipe
                pipe.hset(self._open, one.scoped_id, b"")
                pipe.pexpire(self._open, self._ttl_ms)
                # in the same transaction: a poll of another lead removes from `open` what nobody awaits
                pipe.set(self._names.awaited(one.salt, one.id), b"", px=AWAITED_MS)
                queued += ["open", "kept open", "awaited"]
            id = entry_id(one.term, log.last[part.n - 1] + 1)
            pipe.xadd(key, fields, id=id, nomkstream=one.n_sent > 0)
            queued.append("added")
            if renews or part.ended or not one.n_sent:
                pipe.pexpire(key, self._ttl_ms)
                queued.append("kept")
        if part.ended:
            pipe.xadd(key, {END: b""}, id=entry_id(one.term, log.n_events, 1), nomkstream=True)
            queued.append("ended")
        elif renews and not part.left:
            pipe.getex(self._names.writer(one.salt, one.id), px=LEASE_MS)
            pipe.set(self._names.awaited(one.salt, one.id), b"", px=AWAITED_MS)
            queued += ["renewed", "awaited"]
        return queued

    def _finish_part(self, client: redis.Redis, part: _Part, answer: dict[str, Any]) -> Outcome:
        """Return the outcome of writing a part, and renew or remove its lease.

        answer: Redis's answers to the part's commands, by the names that _queue_part() returned.
        """
        one, n_events = part.of, part.of.log.last[part.n - 1] + 1 if part.n else 0
        if answer.get("added", True) is None:
            return "lost"
        ids = {"added": entry_id(one.term, n_events), "ended": entry_id(one.term, n_events, 1)}
        key = self._names.log(one.salt, one.id)
        for kind, id in ids.items():
            if answer.get(kind) is _REFUSED and not client.xrange(key, id, id):
                return "fenced"  # else an earlier try wrote it, and its answer was lost
        if part.ended or (part.left and not part.n):
            client.unlink(self._names.writer(one.salt, one.id), self._names.awaited(one.salt, one.id))
            client.hdel(self._open, one.scoped_id)
            return "kept" if part.ended else "left"
        if part.left:
            return "left" if self._claim(client, one, LEFT, AWAITED_MS) else "fenced"
        return self._renew(client, one, answer["renewed"]) if "renewed" in answer else "goes on"

    def _renew(self, client: redis.Redis, one: Written, said: bytes | None) -> Outcome:
        """Renew the lease, whose value was `said`, unless another process has taken up the log."""
        if said == CANCEL:
            self._cancel(one.salt, one.id)
        elif said != b"%d" % one.term and not self._claim(client, one, b"%d" % one.term, LEASE_MS):
            return "fenced"
        return "goes on"

    def _claim(self, client: redis.Redis, one: Written, said: bytes, ms: int) -> bool:
        """Set the lease to `said` for `ms` milliseconds, unless another process has taken up the log.

        Returns True if the lease is set.
        """
        with client.pipeline(transaction=True) as pipe:
            pipe.watch(self._names.log(one.salt, one.id))
            if self._is_fenced(pipe, one):
                return False
            pipe.multi()
            pipe.set(self._names.writer(one.salt, one.id), said, px=ms)
            pipe.set(self._names.awaited(one.salt, one.id), b"", px=AWAITED_MS)
            try:
                pipe.execute()
            except WatchError:
                return False
        return True

    def _is_fenced(self, client: redis.Redis, one: Written) -> bool:
        """Return True if another process has taken up the log."""
        key, later = self._names.log(one.salt, one.id), entry_id(one.term + 1, 0)
        return bool(client.xrange(key, later, "+", 1))


def ask_to_cancel(client: redis.Redis, key: str) -> bool:
    """Ask the writer with the lease at this key to cancel its reply; return False if there is no writer.

    The lease still expires at its former time, and a lease LEFT is not changed. So the request does not delay
    another process that takes up the log.
    """
    with client.pipeline(transaction=True) as pipe, contextlib.suppress(WatchError):
        pipe.watch(key)
        if pipe.get(key) in (None, LEFT):
            return False
        pipe.multi()
        pipe.set(key, CANCEL, xx=True, keepttl=True)
        pipe.execute()
    return True


def last_term(entries: Sequence[tuple[bytes, Any]]) -> int:
    """Return the term of the last of a log's entries."""
    return of_entry(entries[-1][0])[0]


def _checked(reply: Any) -> Any:
    """Return an answer of Redis. Return _REFUSED if an entry's id is too small, and raise other errors."""
    if isinstance(reply, Exception):
        if "equal or smaller" in str(reply):
            return _REFUSED
        raise reply
    return reply
