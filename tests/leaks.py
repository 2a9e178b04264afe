"""Sockets and processes that a test opens, closed behind it whatever happens."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import pytest


@contextmanager
def watched() -> Generator[list[str]]:
    """Close every socket and end every process that the block makes, also if it raises. The list that is
    given names, once the block has ended, those that it left open."""
    sockets: list[socket.socket] = []
    processes: list[subprocess.Popen[Any]] = []
    left: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "__init__", _noting(socket.socket.__init__, sockets))
        patch.setattr(subprocess.Popen, "__init__", _noting(subprocess.Popen.__init__, processes))
        try:
            yield left
        finally:
            left += [repr(one) for one in sockets if one.fileno() != -1]
            left += [repr(one) for one in processes if one.poll() is None]
            for one in sockets:
                one.close()
            for process in processes:
                process.kill()
                process.wait()
                for pipe in filter(None, (process.stdin, process.stdout, process.stderr)):
                    pipe.close()


def _noting(init: Any, made: list[Any]) -> Any:
    def noting(self: Any, *arguments: Any, **named: Any) -> None:
        init(self, *arguments, **named)
        made.append(self)

    return noting
