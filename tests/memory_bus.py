"""A bus inside one process: what streams.py does, without a server.

Messages pass through encode and decode, so what arrives is what would arrive over a wire. Nothing is
delivered by itself: either the test calls `pump()`, and everything happens on its thread in a fixed order,
or it delivers in the background `with pool.running():`. A pool can also misbehave, in the ways networks do.
"""

from __future__ import annotations

import random
import threading
from collections import Counter, deque
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import TypeAlias

from server.speculation.wire.bus import Listener
from server.speculation.wire.messages import Message, WireError, decode, encode
from server.speculation.wire.presence import Presence

Tamper: TypeAlias = Callable[[str, bytes], Sequence[bytes]]
_Delivery: TypeAlias = tuple["MemoryBus", bytes | tuple[Presence, ...]]  # a message, or the peers


def _untouched(_: str, data: bytes) -> Sequence[bytes]:
    return (data,)


class MemoryPool:
    """Everybody on one imaginary server.

    `tamper` turns each message sent (receiver's id, bytes) into what arrives instead: () loses it,
    (data, data) duplicates it. All methods are safe from any thread.
    """

    def __init__(self) -> None:
        self.tamper: Tamper = _untouched
        self._wake = threading.Condition(threading.RLock())  # guards all that follows
        self._members: dict[str, MemoryBus] = {}
        self._vanished: set[str] = set()
        self._held: dict[str, list[_Delivery]] = {}
        self._queue: deque[_Delivery] = deque()
        self._connected = True

    def bus(self, presence: Presence) -> MemoryBus:
        """Return a bus for one process; it is on the pool from its start()."""
        return MemoryBus(self, presence)

    def pump(self) -> int:
        """Deliver, on this thread, what is queued by now, but not what the listeners send in answer.

        Returns how much there was: `while pool.pump(): pass` runs until everybody is silent.
        """
        with self._wake:
            count = len(self._queue)
        for _ in range(count):
            with self._wake:
                bus, what = self._queue.popleft() if self._queue else (None, ())
            if bus is not None:
                bus.deliver(what)
        return count

    @contextmanager
    def running(self) -> Generator[None]:
        """Deliver in the background until the end of the with block."""
        ended = threading.Event()
        thread = threading.Thread(target=self._run, args=(ended,), name="duo-memory-bus", daemon=True)
        thread.start()
        try:
            yield
        finally:
            with self._wake:
                ended.set()
                self._wake.notify_all()
            thread.join()

    # -- faults

    def disconnect(self) -> None:
        """End the server: everybody is alone, and what was on its way is lost."""
        with self._wake:
            self._connected = False
            self._queue = deque((bus, what) for bus, what in self._queue if not isinstance(what, bytes))
            for held in self._held.values():
                held.clear()
            self._tell_all()

    def connect(self) -> None:
        """Bring the server back; everybody who was there announces itself again."""
        with self._wake:
            self._connected = True
            self._tell_all()

    def vanish(self, id: str) -> None:
        """Have the others lose sight of a process, as after a crash; what they send to it is lost."""
        with self._wake:
            self._vanished.add(id)
            self._tell_all()

    def appear(self, id: str) -> None:
        """Undo vanish()."""
        with self._wake:
            self._vanished.discard(id)
            self._tell_all()

    def hold(self, id: str) -> None:
        """Keep back everything sent to this process from now on."""
        with self._wake:
            self._held.setdefault(id, [])

    def release(self, id: str, shuffle: random.Random | None = None) -> None:
        """Queue what hold() kept back, in order or shuffled."""
        with self._wake:
            held = self._held.pop(id, [])
            if shuffle is not None:
                shuffle.shuffle(held)
            self._queue.extend(held)
            self._wake.notify_all()

    def inject(self, to: str, data: bytes) -> None:
        """Put raw bytes in the inbox of this process, as anybody on a server can."""
        with self._wake:
            self._append((self._members[to], data))

    # -- for MemoryBus

    def join(self, bus: MemoryBus) -> None:
        """Announce a bus that starts, or describes itself anew."""
        with self._wake:
            self._members[bus.presence.id] = bus
            self._tell_all()

    def leave(self, bus: MemoryBus) -> None:
        with self._wake:
            self._members.pop(bus.presence.id, None)
            self._tell_all()

    def post(self, sender: MemoryBus, to: str, data: bytes) -> bool:
        """Queue a message. False if there is nobody to take it."""
        with self._wake:
            receiver = self._members.get(to)
            if not self._connected or receiver is None or to in self._vanished:
                return False
            if sender.presence.id not in self._members or receiver.presence.role == sender.presence.role:
                return False
            for piece in self.tamper(to, data):
                self._append((receiver, piece))
            return True

    def _append(self, delivery: _Delivery) -> None:
        held = self._held.get(delivery[0].presence.id)
        (self._queue if held is None else held).append(delivery)
        self._wake.notify_all()

    def _tell_all(self) -> None:
        for bus in self._members.values():
            peers = tuple(
                other.presence
                for id, other in sorted(self._members.items())
                if self._connected and id not in self._vanished and other.presence.role != bus.presence.role
            )
            if peers != bus.told:
                bus.told = peers
                self._queue.append((bus, peers))
        self._wake.notify_all()

    def _run(self, ended: threading.Event) -> None:
        while not ended.is_set():
            self.pump()
            with self._wake:
                self._wake.wait_for(lambda: self._queue or ended.is_set())


class MemoryBus:
    """A Bus (see bus.py) on a MemoryPool.

    It raises for a message that cannot be encoded, unlike the real one, so that a test sees the mistake.
    """

    def __init__(self, pool: MemoryPool, presence: Presence) -> None:
        self.counts = Counter[str]()  # messages: sent, received, dropped, undecodable
        self.presence = presence
        self.told: tuple[Presence, ...] = ()  # the pool's: the peers queued for the listener last
        self._pool = pool
        self._listener: Listener | None = None

    def start(self, listener: Listener) -> None:
        self._listener = listener
        self._pool.join(self)

    def send(self, to: str, message: Message) -> None:
        if self._pool.post(self, to, encode(message)):
            self.counts["sent"] += 1
        else:
            self.counts["dropped"] += 1

    def describe(self, presence: Presence) -> None:
        self.presence = presence
        if self._listener is not None:
            self._pool.join(self)

    def close(self) -> None:
        self._listener = None
        self._pool.leave(self)

    def deliver(self, what: bytes | tuple[Presence, ...]) -> None:
        """Hand one thing to the listener; the pool's, on the delivering thread."""
        if self._listener is None:
            return
        if not isinstance(what, bytes):
            self._listener.peers(what)
            return
        try:
            message = decode(what)
        except WireError:
            self.counts["undecodable"] += 1
            return
        self.counts["received"] += 1
        self._listener.received(message)
