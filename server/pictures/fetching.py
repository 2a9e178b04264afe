"""Fetch pictures from other servers (--allow-remote-images): within limits, from public addresses only.

A connection goes to the address that was checked, even if the host's name has another address by then.
"""

from __future__ import annotations

import asyncio
import base64
import http.client
import ipaddress
import socket
import ssl
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from threading import Timer
from typing import Any, TypeAlias
from urllib.parse import SplitResult, urljoin, urlsplit

from server.errors import FieldError
from server.pictures.pixels import MAX_FILE_BYTES

Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address

REQUEST_S = 10.0
"""Maximum seconds for all pictures of a request: 20 MiB at 16 Mbit/s."""
MAX_REMOTE = 16
"""Maximum remote pictures of a request."""
MAX_REDIRECTS = 3
"""Maximum redirects of a picture. Stores of pictures use one, shortened names another."""
N_FETCHING = 4
"""Maximum pictures fetched at once. Others wait, which counts towards the time of their requests."""
_SCHEMES = {"http": 80, "https": 443}
_REDIRECTS = frozenset((301, 302, 303, 307, 308))
_TRANSLATED = ipaddress.ip_network("64:ff9b::/96")  # IPv4 addresses behind a NAT64, private ones too


def is_remote(url: Any) -> bool:
    return isinstance(url, str) and url[:8].lower().startswith(("http://", "https://"))


def is_public(address: Address) -> bool:
    """Return True if anybody on the internet can reach the address.

    Other addresses are refused: otherwise a client could reach machines of this server's private network.
    """
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return is_public(address.ipv4_mapped)
        if address.sixtofour or address.teredo or address in _TRANSLATED:
            return False
    return address.is_global and not address.is_multicast


class RemotePictures:
    """Fetches pictures, at most N_FETCHING at once."""

    def __init__(self, allowed: Callable[[Address], bool] = is_public) -> None:
        self._allowed = allowed
        self._threads = ThreadPoolExecutor(N_FETCHING, thread_name_prefix="duo-fetching")

    async def data_url(self, url: str, place: str, deadline: float) -> str:
        """Return the file at a URL as a data URL; the file's content is not checked here.

        Args:
            url: An http or https URL.
            place: The field that errors name.
            deadline: The time, by time.monotonic(), at which fetching fails.

        Raises:
            FieldError: The file cannot be fetched.
        """
        loop = asyncio.get_running_loop()
        try:
            found = loop.run_in_executor(self._threads, self._fetch, url, deadline)
            data = await asyncio.wait_for(found, max(0.0, deadline - time.monotonic()))
        except (OSError, ValueError, http.client.HTTPException, TimeoutError) as error:
            why = str(error) if isinstance(error, _RefusedError) else _reason(error)
            raise FieldError(place, f"the picture cannot be fetched: {why}") from None
        return "data:;base64," + base64.b64encode(data).decode()

    def close(self) -> None:
        """Cancel fetches that have not begun, and wait for the others."""
        self._threads.shutdown(cancel_futures=True)

    def _fetch(self, url: str, deadline: float) -> bytes:
        for _ in range(1 + MAX_REDIRECTS):
            found = self._answer(url, deadline)
            if isinstance(found, bytes):
                return found
            url = urljoin(url, found)
        raise _RefusedError(f"its URL is redirected more than {MAX_REDIRECTS} times")

    def _answer(self, url: str, deadline: float) -> bytes | str:
        """Return the file at the URL as bytes, or the URL that it is redirected to as a text.

        Raises OSError, ValueError or HTTPException.
        """
        parts = urlsplit(url)
        if not is_remote(url) or not parts.hostname or parts.username is not None:
            raise _RefusedError("its URL has no http or https address, or a password")
        address, left = self._address(parts), deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        with closing(_Pinned(parts, address, left)) as connection:
            stop = Timer(left, connection.break_off)  # however slowly bytes come
            stop.start()
            try:
                return _read(connection, parts)
            except (OSError, ValueError, http.client.HTTPException):
                if time.monotonic() >= deadline:  # it was broken off here
                    raise TimeoutError from None
                raise
            finally:
                stop.cancel()

    def _address(self, parts: SplitResult) -> str:
        """Return an address of a URL's host. Raises _RefusedError if any of its addresses is not allowed."""
        port = parts.port or _SCHEMES[parts.scheme.lower()]
        found = socket.getaddrinfo(parts.hostname, port, type=socket.SOCK_STREAM)
        addresses = [str(place[0]) for *_, place in found]
        if not all(self._allowed(ipaddress.ip_address(one.partition("%")[0])) for one in addresses):
            raise _RefusedError("its server is not on a public address")
        return addresses[0]


class _RefusedError(ValueError):
    """duo does not fetch this picture; the message is for the client."""


class _Pinned(http.client.HTTPConnection):
    """A connection to a checked address of a URL's host, whose name is therefore not looked up again."""

    def __init__(self, parts: SplitResult, address: str, timeout_s: float) -> None:
        self._secure = parts.scheme.lower() == "https"
        super().__init__(parts.hostname or "", parts.port or _SCHEMES[parts.scheme.lower()], timeout_s)
        self._address = address

    def connect(self) -> None:
        self.sock = socket.create_connection((self._address, self.port), self.timeout)
        if self._secure:
            context = ssl.create_default_context()
            self.sock = context.wrap_socket(self.sock, server_hostname=self.host)

    def break_off(self) -> None:
        with suppress(OSError, AttributeError):
            self.sock.shutdown(socket.SHUT_RDWR)


def _read(connection: _Pinned, parts: SplitResult) -> bytes | str:
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    headers = {"Accept": "image/*", "Accept-Encoding": "identity", "User-Agent": "duo"}
    connection.request("GET", target, headers=headers)
    with closing(connection.getresponse()) as response:
        return _body(response)


def _body(response: http.client.HTTPResponse) -> bytes | str:
    if response.status in _REDIRECTS and (there := response.getheader("Location")):
        return there
    if response.status != 200:
        raise _RefusedError(f"its server answers {response.status}")
    data = response.read(MAX_FILE_BYTES + 1)
    if len(data) > MAX_FILE_BYTES:
        raise _RefusedError(f"it has more than {MAX_FILE_BYTES >> 20} MiB")
    if not data or response.length:
        raise _RefusedError("its server broke off")
    return data


def _reason(error: Exception) -> str:
    """Describe an error of the network, without text from the other server."""
    if isinstance(error, TimeoutError):
        return f"it did not come within {REQUEST_S:.0f} s"
    if isinstance(error, socket.gaierror):
        return "its server's name is not known"
    return "its server cannot be read"
