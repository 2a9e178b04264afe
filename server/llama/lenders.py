"""Watch lenders: machines that hold a part of the lead's model (duo lend, or llama.cpp's rpc-server).

This module checks whether they answer, and handles the loss of a lender (docs/adr/0014).
"""

from __future__ import annotations

import os
import select
import socket
import stat
import struct
import sys
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TypeAlias

from server.errors import LostLenderError, StartupError

# Seconds without an answer until a lender counts as busy with another lead, or as unreachable.
GREETING_TIMEOUT_S = 5.0
HELLO, CAPABILITIES = 14, 24  # ggml-rpc.cpp: RPC_CMD_HELLO; transport.h: RPC_CONN_CAPS_SIZE, in bytes
ANSWER = struct.pack("<Q", 4 + CAPABILITIES)  # the length of a version and of capabilities
PROTOCOL = (7, 0)  # ggml-rpc.h: major and minor version; a lender must have the same
OURS = ".".join(map(str, PROTOCOL))
# After SILENCE_S seconds without a packet TCP asks whether the lender is there, PROBES times, SILENCE_S
# apart. So a lender without power or network counts as lost after 5 + 3 * 5 s. Half: a network that is down
# for 10 s ends the lead; twice: clients wait for 40 s.
SILENCE_S, PROBES = 5, 3
_ENDED = select.POLLERR | select.POLLHUP | getattr(select, "POLLRDHUP", 0)  # the last one only on Linux

OnLoss: TypeAlias = Callable[[LostLenderError], None]


def greet(lender: str) -> None:
    """Raise StartupError unless HOST:PORT is a lender that is free and speaks our protocol version."""
    what = f"--rpc: {lender}"
    try:
        with socket.socket() as link:
            link.settimeout(GREETING_TIMEOUT_S)
            link.connect(_host_and_port(lender))
            link.sendall(struct.pack("<BQ", HELLO, CAPABILITIES) + bytes(CAPABILITIES))
            answer = link.makefile("rb").read(10)  # a length, then the version
    except TimeoutError as error:
        raise StartupError(f"{what} does not answer: a lender serves one lead at a time") from error
    except OSError as error:
        raise StartupError(f"{what} cannot be reached ({error}): is duo lend running there?") from error
    if answer[:8] != ANSWER:
        raise StartupError(f"{what} is no lender: give the address that duo lend told")
    if tuple(answer[8:]) != PROTOCOL:
        told = ".".join(map(str, answer[8:]))
        raise StartupError(
            f"{what} speaks version {told}, not {'.'.join(map(str, PROTOCOL))}: install one duo on both"
        )


def _host_and_port(lender: str) -> tuple[str, int]:
    host, _, port = lender.rpartition(":")
    return host, int(port)


def _own_connections(lenders: Sequence[str]) -> Iterator[tuple[str, socket.socket]]:
    """Yield (lender, socket) for llama.cpp's connections to lenders; the sockets are duplicates to close."""
    names: dict[object, str] = {}
    for lender in lenders:
        with suppress(OSError):
            host, port = _host_and_port(lender)
            names[socket.gethostbyname(host), port] = lender
    for link in _own_sockets():
        with suppress(OSError):
            if (peer := link.getpeername()) in names:
                yield names[peer], link
                continue
        link.close()


def _own_sockets() -> Iterator[socket.socket]:
    """Yield duplicates of this process's IPv4 sockets."""
    for name in os.listdir("/dev/fd"):
        with suppress(OSError):
            if stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                link = socket.socket(fileno=os.dup(int(name)))
                if link.family == socket.AF_INET:
                    yield link
                else:
                    link.close()


def miss_leads(host: str, port: int) -> bool:
    """Make TCP check, on each future connection to this address, whether the lead is still there.

    Otherwise a lender would wait forever for a lead that lost its network. Returns False if this process does
    not listen at the address yet.
    """
    asked = False
    for link in _own_sockets():
        with link, suppress(OSError):
            if link.getsockname() == (host, port):
                _ask_when_silent(link)  # connections have their listener's options
                asked = True
    return asked


def _end_process(error: LostLenderError) -> None:
    """Log the loss and end this process, which serves no clients: a drafter, or a lead that loads or ends."""
    print(f"duo: {error.message}", file=sys.stderr, flush=True)
    os._exit(1)


class Watch:
    """Waits until a connection to any lender ends. May report a loss twice.

    There is one Watch per process, because llama.cpp has a single callback for the end of the process.
    """

    def __init__(self) -> None:
        self._on_loss: OnLoss = _end_process
        self._lenders: list[str] = []

    def add(self, lender: str) -> None:
        self._lenders.append(lender)

    @contextmanager
    def reporting(self, on_loss: OnLoss) -> Generator[None]:
        """Call on_loss, on another thread, as soon as a lender is lost. Enter it once models are loaded."""
        if not self._lenders:
            yield
            return
        links = list(_own_connections(self._lenders))
        self._on_loss = on_loss
        until, done = os.pipe()
        thread = threading.Thread(
            target=self._wait_for_loss, args=(links, until), name="duo-lenders", daemon=True
        )
        thread.start()
        try:
            yield
        finally:
            self._on_loss = _end_process
            os.close(done)
            thread.join()
            for _, link in links:
                link.close()

    def _wait_for_loss(self, links: Sequence[tuple[str, socket.socket]], until: int) -> None:
        """Wait until a connection is lost, and report it; or until the pipe `until` is closed."""
        poll, names = select.poll(), {link.fileno(): name for name, link in links}
        for _, link in links:
            _ask_when_silent(link)
            poll.register(link, _ENDED)
        poll.register(until, _ENDED)
        if gone := {names[fd] for fd, _ in poll.poll() if fd in names}:
            self._report_loss(sorted(gone))
        os.close(until)

    def aborted(self, message: str) -> bool:
        """Report a loss, and never return, if llama.cpp aborts the process because of a lender.

        llama.cpp calls this before it aborts, so that the process can end in an orderly way. Returns False if
        `message` gives another reason.
        """
        if "ggml-rpc" not in message:
            return False
        alive: set[str] = set()
        for name, link in _own_connections(self._lenders):
            with link:
                if not _has_ended(link):
                    alive.add(name)
        self._report_loss([name for name in self._lenders if name not in alive] or self._lenders)
        threading.Event().wait()
        return True

    def _report_loss(self, lenders: Sequence[str]) -> None:
        self._on_loss(LostLenderError(", ".join(lenders)))


def _ask_when_silent(link: socket.socket) -> None:
    link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    within_ms = 1000 * SILENCE_S * (1 + PROBES)
    for name, value in (
        ("TCP_KEEPIDLE", SILENCE_S),
        ("TCP_KEEPALIVE", SILENCE_S),  # as macOS calls it
        ("TCP_KEEPINTVL", SILENCE_S),
        ("TCP_KEEPCNT", PROBES),
        ("TCP_USER_TIMEOUT", within_ms),  # while something sent is not confirmed, instead of minutes
    ):
        if hasattr(socket, name):
            link.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _has_ended(link: socket.socket) -> bool:
    poll = select.poll()
    poll.register(link, _ENDED)
    return bool(poll.poll(0))


watch = Watch()
