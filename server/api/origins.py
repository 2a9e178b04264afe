"""Refuse requests of foreign web pages to a server without keys; accept those of programs and own pages.

A web page open in a browser on this machine can send requests to any address, and read the replies once the
page's own name resolves to that address (DNS rebinding). But the page cannot choose the headers Host and
Origin.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from ipaddress import ip_address

from starlette.datastructures import Headers

from server.errors import ForeignPageError

LOCAL = "localhost"
LOCAL_ORIGINS = r"https?://(localhost|127\.0\.0\.1|\[::1\])(:\d+)?"
SAFE_NAMES = re.compile(r"(.+\.)?(localhost|internal)\.?")
"""Names that public DNS does not have: localhost (RFC 6761), and .internal (reserved by ICANN in 2024).

The names by which containers reach this machine end in .internal.
"""


def check_headers(headers: Headers, origins: Sequence[str], *, local: bool) -> None:
    """Raise ForeignPageError for a request from a foreign page.

    Args:
        headers: Headers of the request.
        origins: Origins of pages that may use the server, see Edge.
        local: True if only this machine is served. Then Host must be its name, or an IP address.
    """
    host, origin = headers.get("host", LOCAL).lower(), headers.get("origin")
    if local and not _is_own_name(host):
        raise ForeignPageError(
            f"the server admits this machine only, and {host!r} is not a name of this machine: start the "
            "server with --api-key, or with --no-api-key to let everybody in"
        )
    if origin is None or "*" in origins or origin in origins or origin.lower().partition("://")[2] == host:
        return
    if not (LOCAL in origins and re.fullmatch(LOCAL_ORIGINS, origin)):
        raise ForeignPageError(
            f"pages of {origin!r} may not use the server: start it with --cors-origins {origin}, or "
            "with --api-key"
        )


def _is_own_name(host: str) -> bool:
    """Return True if this value of Host is an address or a name that no public DNS resolves."""
    name = re.sub(r":\d+$", "", host)
    try:
        return bool(SAFE_NAMES.fullmatch(name)) or bool(ip_address(name.strip("[]")))
    except ValueError:
        return False
