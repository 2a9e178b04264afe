"""Run commands on Redis one after the other on a thread, and repeat them in short outages."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import TypeVar

import redis
from redis.exceptions import RedisError, ResponseError

from server.errors import StoreError
from server.speculation.wire.redis_client import connect
from server.speculation.wire.redis_url import shown_url

PATIENCE_S = 5.0
"""Seconds for which a failing command is repeated: a restart of Redis takes 1 to 3."""
LINK_RETRY_S = 0.2  # seconds between two tries of a command. Half: twice the log-ins at a starting Redis
PROBE_S = 1.0  # seconds between two tries in an outage; commands in between fail at once
GATHER_S = 0.05
"""Seconds for which events are gathered into one write of 0.1 ms: 5 tokens at 100 tokens per second."""

logger = logging.getLogger("duo.replies")

T = TypeVar("T")


class RedisLink:
    """A connection to Redis with its own thread, on which commands run in order.

    ask() may be called from any thread.
    """

    def __init__(self, url: str, tick: Callable[[redis.Redis], bool]) -> None:
        """Prepare the link; it connects with the first command.

        Args:
            url: URL of the Redis server.
            tick: Called before each command, and every GATHER_S while it returns True.
        """
        self._client = connect(url)
        self._shown = shown_url(url)
        self._tick = tick
        self._queue: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        self._down_since: float | None = None  # this and what follows: for the thread only
        self._tried_at = float("-inf")
        self._outage_logged = False
        self.up_since = time.monotonic()  # when the latest outage, however short, was over

    def ask(self, work: Callable[[redis.Redis], T], *, talks: bool = True) -> Future[T]:
        """Queue a command; its future fails with StoreError if Redis does not answer.

        Args:
            work: The command. Called on the link's thread.
            talks: True if the command needs an answer of Redis. False: run it even in an outage; its success
                does not end the outage.
        """
        answer: Future[T] = Future()

        def command() -> None:
            if not answer.set_running_or_notify_cancel():
                return
            try:
                answer.set_result(self.attempt(work) if talks else work(self._client))
            except Exception as error:
                answer.set_exception(error)

        if self._closing.is_set():
            answer.set_exception(StoreError.unreachable())
            return answer
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="duo-replies", daemon=True)
            self._thread.start()
        self._queue.put(command)
        return answer

    def attempt(self, work: Callable[[redis.Redis], T]) -> T:
        """Return work(client); while Redis fails, try again for PATIENCE_S. For the link's thread only.

        Raises:
            StoreError: Redis does not answer, or refuses.
        """
        if self._outage_logged and time.monotonic() - self._tried_at < PROBE_S:
            raise StoreError.unreachable()
        while True:
            try:
                result = work(self._client)
            except ResponseError as error:  # Redis answers, and refuses this command: not an outage
                raise StoreError.unreachable() from error
            except (RedisError, OSError) as error:
                self._note_failure(error)
                self._tried_at = time.monotonic()
                if self._outage_logged or self._closing.wait(LINK_RETRY_S):
                    raise StoreError.unreachable() from error
                continue
            if self._outage_logged:
                logger.warning("the Redis server at %s is back: replies are stored there again", self._shown)
            if self._down_since is not None:
                self.up_since = time.monotonic()
            self._down_since, self._outage_logged = None, False
            return result

    def close(self) -> None:
        """Run the queued commands, and end the thread."""
        self._closing.set()
        self._queue.put(None)
        if self._thread is not None:
            self._thread.join()
        self._client.close()

    def _note_failure(self, error: Exception) -> None:
        now = time.monotonic()
        self._down_since = now if self._down_since is None else self._down_since
        if not self._outage_logged and now - self._down_since >= PATIENCE_S:
            self._outage_logged = True
            what = "replies are kept in this process until it is back"
            logger.warning("the Redis server at %s keeps no replies (%s): %s", self._shown, error, what)

    def _run(self) -> None:
        ticks = True
        while True:
            try:
                command = self._queue.get(timeout=GATHER_S if ticks else None)
            except Empty:
                ticks = self._tick(self._client)
                continue
            if command is None:
                self._tick(self._client)
                return
            ticks = self._tick(self._client)
            command()
            ticks = ticks or self._tick(self._client)
