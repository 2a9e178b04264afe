"""Whom a server lets in that wants no key: programs, and web pages of its own, but not every page that
somebody on this machine looks at. A page can send requests to any address, and read the replies once its own
name leads there (DNS rebinding). What it cannot do is say other names than its own in Host and Origin."""

from __future__ import annotations

import re
from collections.abc import Sequence
from ipaddress import ip_address

from starlette.datastructures import Headers

from server.errors import ForeignPageError

LOCAL = "localhost"
LOCAL_ORIGINS = r"https?://(localhost|127\.0\.0\.1|\[::1\])(:\d+)?"
SAFE_NAMES = re.compile(r"(.+\.)?(localhost|internal)\.?")
"""Names that public DNS does not have (RFC 6761; ICANN reserved .internal in 2024), containers' name for this
machine among them."""


def check_headers(headers: Headers, origins: Sequence[str], *, local: bool) -> None:
    """Raises ForeignPageError for a request of a page from elsewhere. origins: of others that are welcome, as
    Edge has them; local: only this machine is served, so that Host must be a name of it, or an address."""
    host, origin = headers.get("host", LOCAL).lower(), headers.get("origin")
    if local and not _safe(host):
        raise ForeignPageError(
            f"the server lets in this machine only, and {host!r} is no name of it: start it with "
            "--api-key, or with --no-api-key to let everybody in"
        )
    if origin is None or "*" in origins or origin in origins or origin.lower().partition("://")[2] == host:
        return
    if not (LOCAL in origins and re.fullmatch(LOCAL_ORIGINS, origin)):
        raise ForeignPageError(
            f"pages of {origin!r} may not use the server: start it with --cors-origins {origin}, or "
            "with --api-key"
        )


def _safe(host: str) -> bool:
    """Whether this value of Host cannot have come by DNS from somebody else."""
    name = re.sub(r":\d+$", "", host)
    try:
        return bool(SAFE_NAMES.fullmatch(name)) or bool(ip_address(name.strip("[]")))
    except ValueError:
        return False
