"""Make a link, and its QR code, by which another device opens /lend, the page that drafts in a browser."""

from __future__ import annotations

import io
import re
from ipaddress import ip_address
from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit

from server.errors import FieldError, NotSupportedError

if TYPE_CHECKING:
    from segno import QRCode

ORIGIN = re.compile(r"https?://([\w.-]+|\[[0-9a-fA-F:]+\])(:\d{1,5})?", re.ASCII)
WHITE_ON_BLACK, PLAIN = "\x1b[97;40m", "\x1b[0m"
"""Terminal codes that set the QR code's colours, since not every camera reads a code in inverted colours."""
BORDER = 4  # modules of quiet zone on each side, as ISO 18004 wants


def lend_link(origin: str, address: str, key: str = "") -> str:
    """Return the URL of /lend for other devices.

    Args:
        origin: The server's URL in the browser that asks. A name such as localhost, by which only that
            browser's machine reaches the server, is replaced by `address`.
        address: The server's address in its network; empty if no other machine reaches the server.
        key: An API key for the link, or empty. It follows a #, so browsers do not send it to any server.

    Raises:
        FieldError: `origin` is not a URL, or has a path.
        NotSupportedError: No other machine reaches the server.
    """
    if not ORIGIN.fullmatch(origin):
        raise FieldError("origin", "must be the server's URL without a path, as a browser's location.origin")
    parts = urlsplit(origin)
    if _is_own(parts.hostname or ""):
        if not address:
            raise NotSupportedError(
                "no other device reaches this server: start it with --host 0.0.0.0, which needs an API key"
            )
        port = parts.netloc.rpartition("]")[2].partition(":")[1:]
        origin = f"{parts.scheme}://{in_url(address)}{''.join(port)}"
    return f"{origin}/lend" + (f"#key={quote(key, safe='')}" if key else "")


def in_url(address: str) -> str:
    """Return an IP address or name as it is written in URLs: IPv6 addresses have brackets."""
    return f"[{address}]" if ":" in address else address


def picture_of(link: str) -> str:
    """Return the link's QR code, as the data: URL of an SVG picture."""
    return _code_of(link).svg_data_uri(border=BORDER, dark="#000", light="#fff", omitsize=True)


def lines_of(link: str) -> str:
    """Return the link's QR code as lines for a terminal; each character shows two modules."""
    text = io.StringIO()
    _code_of(link).terminal(text, compact=True, border=BORDER)
    return "\n".join(f"{WHITE_ON_BLACK}{line}{PLAIN}" for line in text.getvalue().splitlines())


def _code_of(link: str) -> QRCode:
    import segno  # takes 0.1 s, and most starts show no QR code

    return segno.make_qr(link, error="l")


def _is_own(host: str) -> bool:
    """Return True if a URL with this host, such as localhost, leads to the machine that opens the URL."""
    try:
        address = ip_address(host)
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
    return address.is_loopback or address.is_unspecified
