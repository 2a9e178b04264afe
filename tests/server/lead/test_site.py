"""Where a lead says that it serves."""

from __future__ import annotations

import io
import logging
import re
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from server.api.middleware import Edge
from server.lead.listening import ClientPolicy
from server.lead.site import Site, announce, network_address
from tests.qr_codes import codes_on_terminal


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def listener(request: pytest.FixtureRequest) -> Iterator[socket.socket]:
    with socket.create_server((request.param, 0)) as one:
        yield one


@pytest.mark.parametrize("listener", ["127.0.0.1"], indirect=True)
def test_loopback_has_no_address_for_others(listener: socket.socket):
    assert network_address(listener) == ""


@pytest.mark.parametrize("listener", ["0.0.0.0"], indirect=True)
def test_address_is_this_machines(listener: socket.socket):
    """Another socket can listen at it, or it is the machine's name."""
    address = network_address(listener)
    assert address not in ("", "0.0.0.0", "127.0.0.1")
    if address != socket.gethostname():
        socket.create_server((address, 0)).close()


def announced(listener: socket.socket, monkeypatch: pytest.MonkeyPatch, out: io.StringIO) -> str:
    monkeypatch.setattr(sys, "stdout", out)
    site = Site(listener, "unix:redis", 1, lent_model=Path("draft.gguf"))
    announce(site, ClientPolicy(Edge(), None, 0, made_key="sk-made"))
    return out.getvalue()


@pytest.mark.parametrize("listener", ["0.0.0.0"], indirect=True)
def test_terminal_shows_the_code(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.INFO)
    [link] = codes_on_terminal(announced(listener, monkeypatch, Terminal()))
    assert link == f"http://{network_address(listener)}:{listener.getsockname()[1]}/lend"
    assert re.search(rf"lend +{re.escape(link)}:", caplog.text)
    assert "█" not in announced(listener, monkeypatch, io.StringIO()), "a log is no terminal"


@pytest.mark.parametrize("listener", ["127.0.0.1"], indirect=True)
def test_lone_machine_shows_no_code(listener: socket.socket, monkeypatch: pytest.MonkeyPatch):
    assert "█" not in announced(listener, monkeypatch, Terminal())
