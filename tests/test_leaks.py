"""What a test leaves open is closed behind it, and named."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest

from tests import leaks


def test_open_things_are_closed_and_named():
    with leaks.watched() as left:
        server = socket.create_server(("127.0.0.1", 0))
        client = socket.create_connection(server.getsockname())
        process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    assert sorted(name.split()[0] for name in left) == ["<Popen:", "<socket.socket", "<socket.socket"]
    assert server.fileno() == client.fileno() == -1
    assert process.returncode == -9
    assert process.stdin is not None
    assert process.stdin.closed


def test_a_test_that_fails_leaves_nothing_either():
    made: list[socket.socket] = []

    def fail() -> None:
        made.append(socket.socket())
        raise ValueError("the test's own mistake")

    with pytest.raises(ValueError, match="own mistake"), leaks.watched():
        fail()
    assert made[0].fileno() == -1


def test_closed_resources_are_not_named():
    with leaks.watched() as left:
        with socket.socket():
            pass
        subprocess.run([sys.executable, "-c", ""], check=True)
    assert left == []
