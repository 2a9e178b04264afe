"""What the tests of the real bus are made of: processes on it, and servers that can be killed."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import cast

import redis

from server.local.embedded import find_binary, server_command
from server.speculation.wire.messages import Message
from server.speculation.wire.presence import Presence, Role, VocabularyCard
from server.speculation.wire.streams import RedisBus

TIMEOUT_S = 20.0
POOL = "test"


def presence(id: str, role: Role, td_us: int = 0) -> Presence:
    return Presence(id, role, "toy", "0", VocabularyCard(16, 1, None, (5, 2**32 - 1)), 1, td_us)


def eventually(condition: Callable[[], object]) -> None:
    """Wait until the condition holds, for things that cannot say when they happen."""
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.005)


def keys(client: redis.Redis) -> list[bytes]:
    """Return every key on the server."""
    return sorted(cast(list[bytes], client.keys("*")))


class Member:
    """A bus, and a listener that records what it hears."""

    def __init__(self, url: str, id: str, role: Role) -> None:
        self.bus = RedisBus(url, POOL, presence(id, role))
        self.messages: list[Message] = []
        self.peers_seen: list[list[Presence]] = []
        self._heard = threading.Condition()

    def start(self) -> Member:
        self.bus.start(self)
        return self

    def received(self, message: Message) -> None:
        with self._heard:
            self.messages.append(message)
            self._heard.notify_all()

    def peers(self, present: Sequence[Presence]) -> None:
        with self._heard:
            self.peers_seen.append(list(present))
            self._heard.notify_all()

    @property
    def sees(self) -> list[str]:
        return [peer.id for peer in self.peers_seen[-1]] if self.peers_seen else []

    def wait(self, condition: Callable[[], object]) -> None:
        """Wait until something heard makes the condition true."""
        with self._heard:
            assert self._heard.wait_for(condition, TIMEOUT_S), (self.messages, self.peers_seen)

    def wait_to_see(self, *ids: str) -> None:
        self.wait(lambda: self.sees == list(ids))


class Server:
    """A server on a socket that stays the same when it is killed and started again."""

    def __init__(self, *extra: str) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix="duo-test-", dir="/tmp"))
        self._command = [*server_command(find_binary(), self._directory), *extra]
        self.process: subprocess.Popen[bytes] | None = None
        self.socket = self._directory / "socket"
        self.url = f"unix://{self.socket}"

    def start(self) -> None:
        self.process = subprocess.Popen(self._command)
        eventually(self._listens)

    def _listens(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, "the server has ended: its own output says why"
        try:
            with redis.Redis.from_url(self.url, retry=None) as client:
                client.ping()
        except redis.AuthenticationError:
            return True
        except redis.ConnectionError:
            return False
        return True

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def remove(self) -> None:
        self.kill()
        shutil.rmtree(self._directory)
