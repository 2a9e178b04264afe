"""Sockets and processes that a test opens, closed behind it whatever happens."""

from __future__ import annotations

import socket
import subprocess
import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import pytest

BUS_S = 10.0  # for a thread of a bus to end; one that was not closed costs a failing test this long


@contextmanager
def watched() -> Generator[list[str]]:
    """Close every socket and end every process that the block makes, also if it raises.

    The list that is given names, once the block has ended, those that it left open.
    """
    sockets: list[socket.socket] = []
    processes: list[subprocess.Popen[Any]] = []
    left: list[str] = []
    before = set(threading.enumerate())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "__init__", _noting(socket.socket.__init__, sockets))
        patch.setattr(subprocess.Popen, "__init__", _noting(subprocess.Popen.__init__, processes))
        try:
            yield left
        finally:
            _await_buses(set(threading.enumerate()) - before)
            left += [repr(one) for one in sockets if one.fileno() != -1]
            left += [repr(one) for one in processes if one.poll() is None]
            for one in sockets:
                one.close()
            for process in processes:
                process.kill()
                process.wait()
                for pipe in filter(None, (process.stdin, process.stdout, process.stderr)):
                    pipe.close()


def _await_buses(threads: set[threading.Thread]) -> None:
    """Wait for the threads of closed buses, for which the bus itself waits no longer than a moment.

    On a busy machine they need longer, and close their connections last.
    """
    for thread in threads:
        if thread.name.startswith("duo-bus-"):
            thread.join(BUS_S)


def _noting(init: Any, made: list[Any]) -> Any:
    def noting(self: Any, *arguments: Any, **named: Any) -> None:
        init(self, *arguments, **named)
        made.append(self)

    return noting
