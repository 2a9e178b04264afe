"""Read URLs of Redis servers without importing the Redis client, which takes as long as loading a model."""

from __future__ import annotations

import re
from urllib.parse import SplitResult

SENTINEL = "+sentinel"  # suffix of the scheme of a URL that names sentinels


def split_url(url: str) -> SplitResult:
    """Split a URL that may name several hosts.

    It replaces urlsplit(). Since the fixes of CVE-2024-11168 and CVE-2025-0938, which some builds of Python
    3.11 contain, urlsplit() refuses a list of hosts with an IPv6 address.
    """
    found = re.match(r"(?:([^:/?#]*)://)?([^/?#]*)([^?#]*)\??([^#]*)(.*)", url, re.DOTALL)
    assert found
    return SplitResult(*(part or "" for part in found.groups()))


def shown_url(url: str) -> str:
    """Return the URL without user, password and options, to show to people."""
    parts = split_url(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def without_password(url: str) -> str:
    """Return the URL with each password replaced by PASSWORD, for the log."""
    return re.sub(r"(//[^/:?]*:)[^/?]*(?=@)|(password=)[^&]*", r"\1\2PASSWORD", url)
