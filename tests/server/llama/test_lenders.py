"""What a lead finds at the address of a lender, and how it learns that one is gone."""

from __future__ import annotations

import socket
import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from queue import SimpleQueue

import pytest

from server.errors import LostLenderError, StartupError
from server.llama import lenders
from server.llama.lenders import ANSWER, CAPABILITIES, PROTOCOL, Watch, greet, miss_leads

WAIT_S = 10.0


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as one:
        yield one


def address(listener: socket.socket) -> str:
    return f"127.0.0.1:{listener.getsockname()[1]}"


@contextmanager
def answering(listener: socket.socket, data: bytes) -> Generator[SimpleQueue[bytes]]:
    """Answer one caller and yield the queue that gets its whole question."""
    asked: SimpleQueue[bytes] = SimpleQueue()

    def serve() -> None:
        link, _ = listener.accept()
        with link:
            asked.put(link.recv(9 + CAPABILITIES, socket.MSG_WAITALL))
            link.sendall(data)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield asked
    thread.join(WAIT_S)


def test_greeting_matches_llama_cpp(listener: socket.socket):
    with answering(listener, ANSWER + bytes([*PROTOCOL, 0, 0]) + bytes(CAPABILITIES)) as asked:
        greet(address(listener))
    assert asked.get(timeout=WAIT_S) == b"\x0e" + CAPABILITIES.to_bytes(8, "little") + bytes(CAPABILITIES)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n", "is no lender"),
        (b"", "is no lender"),
        (ANSWER + bytes([6, 1, 0, 0]), r"speaks version 6\.1, not 7\.0: install one duo on both"),
    ],
)
def test_foreign_lender_is_refused(listener: socket.socket, data: bytes, said: str):
    with answering(listener, data), pytest.raises(StartupError, match=said):
        greet(address(listener))


def test_busy_lender_does_not_answer(listener: socket.socket, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(lenders, "GREETING_TIMEOUT_S", 0.05)
    with pytest.raises(StartupError, match="one lead at a time"):
        greet(address(listener))


def asks_when_silent(link: socket.socket) -> int:
    return link.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)


def test_a_lender_asks_leads_that_are_silent(listener: socket.socket):
    host, port = listener.getsockname()
    assert miss_leads(host, port)
    with socket.create_connection((host, port)), listener.accept()[0] as lead:
        assert asks_when_silent(lead)
    listener.close()
    assert not miss_leads(host, port), "nobody listens"


@pytest.mark.parametrize("closed", [0, 1])
def test_lost_lender_is_named(closed: int):
    watch, told = Watch(), SimpleQueue[LostLenderError]()
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as two:
        names = [address(one), address(two)]
        links = [socket.create_connection(listener.getsockname()) for listener in (one, two)]
        ends = [listener.accept()[0] for listener in (one, two)]
        for name in names:
            watch.add(name)
        with watch.reporting(told.put):
            ends[closed].close()
            assert f"the lender {names[closed]} is gone" in told.get(timeout=WAIT_S).message
            assert all(map(asks_when_silent, links)), "one without power is missed, too"
        for link in (*links, *ends):
            link.close()


def test_lender_abort_never_returns(listener: socket.socket):
    watch, told = Watch(), SimpleQueue[LostLenderError]()
    watch.add(address(listener))
    message = "ggml/src/ggml-rpc/ggml-rpc.cpp:566: Remote RPC server crashed"
    with watch.reporting(told.put):
        thread = threading.Thread(target=watch.aborted, args=(message,), daemon=True)
        thread.start()
        assert address(listener) in told.get(timeout=WAIT_S).message
        assert thread.is_alive()
        assert not watch.aborted("ggml/src/ggml.c:1: GGML_ASSERT(x) failed"), "the process ends"
    assert told.empty()
