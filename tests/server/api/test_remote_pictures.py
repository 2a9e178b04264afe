"""Pictures at URLs: fetched only with --allow-remote-images, from public addresses, within limits."""

from __future__ import annotations

import ipaddress
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from typing import Any
from urllib.parse import SplitResult

import pytest

from server.api.stages import remote_urls
from server.pictures import fetching as pictures
from server.pictures.fetching import MAX_REDIRECTS, MAX_REMOTE, Address, RemotePictures, is_public
from server.pictures.pixels import MAX_FILE_BYTES
from tests.http_lead import Lead
from tests.server.api.test_pictures import BLUE, RED, answered, asking, refusal, said, seeing, seen, text
from tests.server.pictures.drawn import drawn, file_of

FILES = {"/red.png": file_of(drawn("red")), "/blue": file_of(drawn("blue"), "WEBP"), "/empty": b""}
END = Event()


class Gallery(BaseHTTPRequestHandler):
    """Another server: pictures, redirects, and what a bad one does."""

    asked: list[str] = []  # noqa: RUF012 - of all servers of this module

    def do_GET(self) -> None:
        self.asked.append(self.path)
        name, _, rest = self.path[1:].partition("/")
        if self.path in FILES:
            self._answer(200, FILES[self.path])
        elif name == "to":
            self._answer(302, Location=rest)
        elif name == "again":
            n = int(rest)
            self._answer(302, Location=f"/again/{n - 1}" if n > 1 else "/red.png")
        elif name == "large":
            self._answer(200, bytes(MAX_FILE_BYTES + 1))
        elif name == "cut":
            self._answer(200, FILES["/red.png"], **{"Content-Length": "9999"})
        elif name == "slow":
            self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n")
            END.wait()
        else:
            self._answer(404)

    def _answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in ({"Content-Length": str(len(body))} | headers).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def gallery() -> Generator[str]:
    END.clear()
    with ThreadingHTTPServer(("127.0.0.1", 0), Gallery) as server:
        server.daemon_threads = False  # closing it waits for its connections
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        END.set()
        server.shutdown()
        thread.join()


def is_gallery(address: Address) -> bool:
    return address == ipaddress.ip_address("127.0.0.1")


@contextmanager
def fetching(remote: RemotePictures) -> Generator[Lead]:
    with seeing(remote=remote) as lead:
        yield lead
    remote.close()


@pytest.fixture(scope="module")
def lead() -> Generator[Lead]:
    with fetching(RemotePictures(is_gallery)) as one:
        yield one


def about(url: str) -> list[dict[str, Any]]:
    return asking(text("What is "), seen(url), text("?"))


def why_refused(lead: Lead, url: str) -> str:
    error = refusal(lead, about(url))
    assert error["param"] == "messages.0.content.1.image_url"
    assert "\n" not in error["message"]
    return error["message"].removeprefix("messages.0.content.1.image_url: ")


def test_fetched_pictures_are_those_that_are_sent(lead: Lead, gallery: str):
    for path, sent in (("/red.png", RED), ("/blue", None), ("/to//red.png", RED), ("/again/2", RED)):
        reply = said(answered(lead, about(gallery + path)))
        if sent:
            assert reply == said(answered(lead, about(sent)))
        else:
            assert reply != said(answered(lead, about(RED)))
    assert said(answered(lead, about(BLUE))) != said(answered(lead, about(RED)))


def test_without_the_flag_nothing_is_fetched(gallery: str):
    Gallery.asked.clear()
    with seeing() as lead:
        assert "pictures are not fetched: send a data URL" in why_refused(lead, f"{gallery}/red.png")
    assert not Gallery.asked


def test_private_addresses_are_refused(gallery: str):
    Gallery.asked.clear()
    port = gallery.rpartition(":")[2]
    with fetching(RemotePictures()) as lead:
        for host in (
            "127.0.0.1",
            "localhost",
            "[::1]",
            "0.0.0.0",
            "10.0.0.1",
            "169.254.169.254",
            "[fe80::1]",
        ):
            assert "not on a public address" in why_refused(lead, f"http://{host}:{port}/red.png")
    assert not Gallery.asked


def test_redirects_are_followed_to_allowed_addresses_only(lead: Lead, gallery: str):
    there = f"http://127.0.0.2:{gallery.rpartition(':')[2]}/red.png"
    assert "not on a public address" in why_refused(lead, f"{gallery}/to/{there}")
    assert "no http or https address" in why_refused(lead, f"{gallery}/to/file:///etc/hostname")
    assert answered(lead, about(f"{gallery}/again/{MAX_REDIRECTS}"))
    assert "redirected more than 3 times" in why_refused(lead, f"{gallery}/again/{MAX_REDIRECTS + 1}")


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("/none", "its server answers 404"),
        ("/large", "it has more than 20 MiB"),
        ("/cut", "its server broke off"),
        ("/empty", "its server broke off"),
        ("@127.0.0.1/red.png", "its URL has no http or https address, or a password"),
        (":1/red.png", "its server cannot be read"),
    ],
)
def test_bad_answers_are_told(lead: Lead, gallery: str, path: str, why: str):
    url = gallery + path if path[0] == "/" else f"http://127.0.0.1{path}"
    assert f"the picture cannot be fetched: {why}" in why_refused(lead, url.replace("127.0.0.1@", "a:b@"))


def test_unknown_names_are_told(lead: Lead):
    assert "its server's name is not known" in why_refused(lead, "http://none.invalid/a.png")


@pytest.mark.parametrize("is_broken_off", [False, True])
def test_slow_servers_are_left(
    lead: Lead, gallery: str, monkeypatch: pytest.MonkeyPatch, is_broken_off: bool
):
    """The wait for a byte ends at the same moment as the whole fetch: whichever is first."""
    pinned = pictures._Pinned  # pyright: ignore[reportPrivateUsage]

    def patient(parts: SplitResult, address: str, timeout_s: float) -> Any:
        return pinned(parts, address, 60.0)

    if is_broken_off:
        monkeypatch.setattr(pictures, "_Pinned", patient)
    with monkeypatch.context() as patch:
        patch.setattr(remote_urls, "REQUEST_S", 0.5)
        assert "it did not come within" in why_refused(lead, f"{gallery}/slow")
    assert answered(lead, about(f"{gallery}/red.png")), "others are fetched meanwhile"


def test_requests_have_few_remote_pictures(lead: Lead, gallery: str):
    shown = [seen(f"{gallery}/red.png")] * (MAX_REMOTE + 1)
    error = refusal(lead, asking(*shown, text("?")))
    assert error["message"].endswith(f"a request may have {MAX_REMOTE} remote pictures: send data URLs")


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("93.184.216.34", True),
        ("2606:2800:220:1::1", True),
        ("::ffff:93.184.216.34", True),
        ("192.168.1.1", False),
        ("172.16.0.1", False),
        ("100.64.0.1", False),
        ("224.0.0.1", False),
        ("255.255.255.255", False),
        ("::ffff:10.0.0.1", False),
        ("fc00::1", False),
        ("fe80::1", False),
        ("ff02::1", False),
        ("::", False),
        ("64:ff9b::a00:1", False),
        ("2002:a00:1::", False),
        ("2001:0:a00:1::", False),
    ],
)
def test_public_addresses(address: str, public: bool):
    assert is_public(ipaddress.ip_address(address)) == public
