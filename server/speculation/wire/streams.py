"""Implement the bus over Redis Streams: every key name, TTL, length and reply shape is in this file.

    duo:{pool}:members              set of "<role>:<id>": who may be here
    duo:{pool}:member:<role>:<id>   JSON of a Presence: who is here, while the key lives
    duo:{pool}:<role>:<id>          that process's inbox, a stream of entries with one field, "m"

The braces keep a pool in one slot of a cluster. Each key gets its TTL in the transaction that makes it, and
only its owner renews it: a crash leaves nothing behind, and sending to a dead inbox (NOMKSTREAM) does not
bring it back. Entries are trimmed once read, because they contain people's prompts. Needs Redis 6.2.

A bus has two threads. The reader owns the link: it announces, keeps keys alive, notices who joins and leaves,
reads the inbox, and is the only thread that calls the listener. The writer sends queued messages, many per
round trip. Neither thread knows why a link broke; after any failure the reader begins again.
"""

from __future__ import annotations

import functools
import logging
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable
from queue import SimpleQueue
from typing import TypeVar, cast

from redis.exceptions import RedisError

from server.speculation.wire.bus import Listener
from server.speculation.wire.intake import HEARTBEAT_S, Intake
from server.speculation.wire.messages import MAX_BYTES, MAX_TO_LEAD, Message, WireError, decode, encode
from server.speculation.wire.presence import Presence, Role
from server.speculation.wire.redis_client import BACKOFF_S, StreamEntry, connect
from server.speculation.wire.redis_url import shown_url
from server.speculation.wire.roster import MAX_CARD_BYTES, MAX_PEERS, Roster, member_name, write_card

PRESENCE_TTL_MS = int(8 * 1000 * HEARTBEAT_S)  # a process that misses eight heartbeats is gone
# TTL of inboxes and of the set of members: a process that was silent for a while still finds its inbox
KEYS_TTL_MS = 5 * PRESENCE_TTL_MS
MAX_MEMBERS = 4 * MAX_PEERS  # names in the set: four times as many as a process looks at, of either role
BUS_BACKLOG = 1024  # maximum messages in an inbox, and maximum messages that wait to be sent
READ_COUNT = 32  # entries of one read
BUS_CLOSE_S = 2 * HEARTBEAT_S  # maximum wait of close() for the threads; one blocks for up to a heartbeat

logger = logging.getLogger("duo.bus")

T = TypeVar("T")

_MESSAGE = b"m"
_WAKE = b"w"  # an entry that says nothing
_START = b"0-0"


class RedisBus:
    """A Bus (see bus.py) on a Redis server, which may be down at any time, even at the start.

    `Listener.peers` is also called when a member changes its description: same id, other fields. Raises only
    StartupError, for a malformed url.
    """

    def __init__(self, url: str, pool: str, presence: Presence) -> None:
        # messages: sent; received; dropped: not sent, since the bus was down, its queue full, the message
        # too large or the peer unknown; undecodable: arrived, but not as a message of this version within
        # its limits
        self.counts = Counter[str]()
        self._client = connect(url)
        self._shown = shown_url(url)
        self._prefix = f"duo:{{{pool}}}:"
        self._me = member_name(presence.role, presence.id)
        self._inbox = self._prefix + self._me
        self._their_role: Role = "drafter" if presence.role == "lead" else "lead"
        self._card = write_card(presence)
        self._queue: SimpleQueue[tuple[str, Message] | None] = SimpleQueue()
        self._count_lock = threading.Lock()
        self._closing = threading.Event()
        self._closed = threading.Event()  # a thread that ends later closes its connections itself
        self._threads: list[threading.Thread] = []
        self._up = False  # only the reader's thread changes this and what follows
        self._outage = False  # already reported
        self._last = _START  # entry read last
        self._peers: tuple[Presence, ...] = ()  # members that were last reported to the listener
        self._roster = Roster(self._their_role)
        self._intake = Intake()
        self._most = MAX_TO_LEAD if presence.role == "lead" else MAX_BYTES  # bytes of one entry

    def start(self, listener: Listener) -> None:
        """Announce this process and begin to read its inbox, in the background. Call it once per bus."""
        for name, target, args in (
            ("read", self._read_inbox, (listener,)),
            ("write", self._write_queued, ()),
        ):
            work = functools.partial(self._run_thread, target, *args)
            thread = threading.Thread(target=work, name=f"duo-bus-{name}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def send(self, to: str, message: Message) -> None:
        """Queue a message; see Bus. The writer encodes it."""
        if not self._up or self._queue.qsize() >= BUS_BACKLOG:
            self._count_dropped(1)
        else:
            self._queue.put((to, message))

    def describe(self, presence: Presence) -> None:
        """Replace the presence; others see it within HEARTBEAT_S. Id and role must not change."""
        self._card = write_card(presence)

    def close(self) -> None:
        """Send what is queued, remove our keys, and end the threads within BUS_CLOSE_S. May be repeated."""
        if self._closing.is_set():
            return
        self._closing.set()
        self._queue.put(None)
        deadline = time.monotonic() + BUS_CLOSE_S
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))
        self._closed.set()
        self._client.close()  # also frees a thread that a hung server holds

    def _run_thread(self, work: Callable[..., None], *arguments: Listener) -> None:
        """Call `work`; once it has returned or failed, close the client if the bus is closed."""
        try:
            work(*arguments)
        finally:
            if self._closed.is_set():
                self._client.close()

    # -- the reader's thread

    def _read_inbox(self, listener: Listener) -> None:
        pause, longest = BACKOFF_S
        while not self._closing.is_set():
            try:
                self._announce_inbox()
                pause = BACKOFF_S[0]
                self._follow_inbox(listener)
            except Exception as error:  # whatever broke the link, the answer is the same
                if self._closing.is_set():
                    return
                self._up = False
                self._tell_peers(listener, ())
                if not self._outage:
                    self._outage = True
                    logger.warning("lost the Redis server at %s (%s); trying again", self._shown, error)
                self._closing.wait(pause)
                pause = min(2 * pause, longest)
        self._leave_bus()

    def _announce_inbox(self) -> None:
        """Create our inbox or keep the existing one, and choose the entry after which to read."""
        inbox = self._inbox
        with self._client.pipeline(transaction=True) as pipe:
            pipe.execute_command("XADD", inbox, "MAXLEN", "~", BUS_BACKLOG, "*", _WAKE, b"")
            pipe.pexpire(inbox, KEYS_TTL_MS)
            hello = cast(bytes, pipe.execute()[0])
        if _id_numbers(hello) < _id_numbers(self._last):
            self._last = _START  # another server, whose clock is behind: all that is there is new
        self._up = True
        if self._outage:
            self._outage = False
            logger.warning("the Redis server at %s is back", self._shown)

    def _follow_inbox(self, listener: Listener) -> None:
        """Read the inbox and keep our keys alive, until closing or an error."""
        due = 0.0
        while not self._closing.is_set():
            if time.monotonic() >= due:
                self._tell_peers(listener, self._beat_once())
                due = time.monotonic() + HEARTBEAT_S
            if self._intake.flooded:
                self._closing.wait(due - time.monotonic())
                continue
            block_ms = max(1, int((due - time.monotonic()) * 1000))  # 0 would block for ever
            began = time.thread_time()
            n = self._receive_entries(listener, block_ms)
            self._intake.took(time.thread_time() - began, n, full=n == READ_COUNT)

    def _receive_entries(self, listener: Listener, block_ms: int) -> int:
        """Read once, waiting up to block_ms; return the number of entries, READ_COUNT if more may wait."""
        found = cast(
            list[StreamEntry],
            self._client.execute_command(
                "XREAD", "COUNT", READ_COUNT, "BLOCK", block_ms, "STREAMS", self._inbox, self._last
            ),
        )
        for entry, fields in found:
            self._last = entry
            if fields[0] == _WAKE:
                continue
            message = message_of(fields, self._most)
            if message is None:
                self.counts["undecodable"] += 1
                continue
            self.counts["received"] += 1
            _tell_listener(listener.received, message)
        return len(found)

    def _beat_once(self) -> tuple[Presence, ...]:
        """Renew our keys, trim read entries (in a flood, all entries), and return members of the other role.

        Raises RedisError if our inbox is gone, since the server was emptied or this process was stopped for
        long. Reads at most MAX_MEMBERS names. A larger set is deleted: live members add themselves again
        within HEARTBEAT_S, and the roster keeps members that it knows already.
        """
        inbox, members, roster = self._inbox, self._prefix + "members", self._roster
        kept = ("MAXLEN", 0) if self._intake.flooded else ("MINID", _id_after(self._last))
        self._intake.end_interval()
        with self._client.pipeline(transaction=True) as pipe:
            pipe.pexpire(inbox, KEYS_TTL_MS)
            pipe.execute_command("XTRIM", inbox, *kept)
            pipe.set(self._card_of(self._me), self._card, px=PRESENCE_TTL_MS)
            pipe.sadd(members, self._me)
            pipe.pexpire(members, KEYS_TTL_MS)
            pipe.scard(members)
            pipe.srandmember(members, MAX_MEMBERS)
            alive, *_, n_listed, listed = pipe.execute()
        if not alive:
            raise RedisError("its inbox is gone")
        new = roster.newcomers({name.decode(errors="replace") for name in listed})
        cards = self._read_cards([*roster.names, *new])
        gone = [name for name, card in cards.items() if card is None]
        if n_listed > MAX_MEMBERS:
            self._client.unlink(members)
        elif gone:
            self._client.srem(members, *gone)  # a living member adds itself again at its heartbeat
        return roster.update(cards)

    def _card_of(self, member: str) -> str:
        return f"{self._prefix}member:{member}"

    def _read_cards(self, members: list[str]) -> dict[str, bytes | None]:
        """Return at most MAX_CARD_BYTES + 1 bytes of each member's card (JSON description), None if gone."""
        if not members:
            return {}
        with self._client.pipeline(transaction=False) as pipe:
            for member in members:
                pipe.getrange(self._card_of(member), 0, MAX_CARD_BYTES)
            replies = pipe.execute(raise_on_error=False)
        return {m: r if isinstance(r, bytes) and r else None for m, r in zip(members, replies, strict=True)}

    def _tell_peers(self, listener: Listener, peers: tuple[Presence, ...]) -> None:
        if peers == self._peers:
            return
        self._peers = peers
        _tell_listener(listener.peers, peers)

    def _leave_bus(self) -> None:
        if not self._up:
            return
        try:
            with self._client.pipeline(transaction=True) as pipe:
                pipe.delete(self._card_of(self._me), self._inbox)
                pipe.srem(self._prefix + "members", self._me)
                pipe.execute()
        except (RedisError, OSError):
            logger.debug("could not take our keys away; they expire by themselves")

    # -- the writer's thread

    def _write_queued(self) -> None:
        open_ = True
        while open_:
            size = 0
            batch: list[tuple[str, bytes]] = []
            while open_ and size < MAX_BYTES and (not batch or not self._queue.empty()):
                item = self._queue.get()
                open_ = item is not None
                if item is not None and (data := self._encode_message(item[1])) is not None:
                    batch.append((f"{self._their_role}:{item[0]}", data))
                    size += len(data)
            self._flush_batch(batch)
        self._wake_reader()

    def _encode_message(self, message: Message) -> bytes | None:
        """Return the message's bytes; None, counted as dropped, if it cannot be encoded or is too large."""
        try:
            data = encode(message)
        except (struct.error, OverflowError, TypeError, ValueError, KeyError) as error:
            logger.error("a %s cannot be encoded: %s", type(message).__name__, error)
            data = None
        if data is None or len(data) > MAX_BYTES:
            self._count_dropped(1)
            return None
        return data

    def _flush_batch(self, batch: list[tuple[str, bytes]]) -> None:
        """Send messages in one round trip; those that fail are dropped, and counted as such."""
        if not batch or not self._up:
            return self._count_dropped(len(batch))
        try:
            with self._client.pipeline(transaction=False) as pipe:
                for member, data in batch:
                    pipe.execute_command(*self._append_command(member, _MESSAGE, data))
                results = pipe.execute(raise_on_error=False)
        except Exception as error:  # the reader says so, once, if the link is broken
            logger.debug("could not send %d messages: %s", len(batch), error)
            return self._count_dropped(len(batch))
        arrived = sum(isinstance(result, bytes) for result in results)  # None: no such inbox
        self.counts["sent"] += arrived
        return self._count_dropped(len(results) - arrived)

    def _append_command(self, member: str, field: bytes, data: bytes) -> tuple[str | bytes | int, ...]:
        return ("XADD", self._prefix + member, "NOMKSTREAM", "MAXLEN", "~", BUS_BACKLOG, "*", field, data)

    def _wake_reader(self) -> None:
        """Wake the reader from a blocking read, so it sees that the bus closes."""
        if not self._up:
            return
        try:
            self._client.execute_command(*self._append_command(self._me, _WAKE, b""))
        except Exception as error:
            logger.debug("could not wake the reader: %s", error)

    def _count_dropped(self, count: int) -> None:
        with self._count_lock:
            self.counts["dropped"] += count


def _tell_listener(listener: Callable[[T], None], what: T) -> None:
    """Call a listener; an exception, which is a bug, is logged and does not cut the link."""
    try:
        listener(what)
    except Exception:
        logger.exception("a bus listener failed on %s", type(what).__name__)


def message_of(fields: list[bytes], most: int = MAX_BYTES) -> Message | None:
    """Return the message of an entry of at most `most` bytes, None if it is invalid."""
    if len(fields) != 2 or fields[0] != _MESSAGE or len(fields[1]) > most:
        return None
    try:
        return decode(fields[1])
    except WireError:
        return None


def _id_numbers(entry: bytes) -> tuple[int, int]:
    """Return a stream id as two numbers."""
    milliseconds, _, sequence = entry.partition(b"-")
    return int(milliseconds), int(sequence)


def _id_after(entry: bytes) -> str:
    """Return the smallest stream id after this one."""
    milliseconds, sequence = _id_numbers(entry)
    return f"{milliseconds}-{sequence + 1}"
