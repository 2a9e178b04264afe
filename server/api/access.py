"""Check API keys, and decide which requests share cached prompts.

Without keys, all requests share cached prompts, unless a request gives a `cache_salt`. With keys, prompts
cached for one key are never used for another. Otherwise the time to the first token, or the number of cached
tokens, would tell a client what others have asked.
"""

from __future__ import annotations

import hmac
from base64 import b64decode
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256

from starlette.datastructures import Headers
from starlette.requests import Request

from server.errors import AccessError

PUBLIC = frozenset({"/", "/status", "/lend", "/health", "/v1/health", "/ready", "/openapi.yaml"})
"""Paths that need no key."""
PUBLIC_BELOW = ("/web/", "/lend/page/")
"""Prefixes of other paths that need no key."""
SOCKET, SOCKET_PROTOCOL = "/lend/socket", "duo-lend"
"""The path of the only WebSocket, and its subprotocol."""
KEY_PROTOCOL = "duo-key."
"""Prefix of a subprotocol that is an API key in base64url. Pages can set no other header of a WebSocket."""
DOMAIN = b"duo prompt cache"  # fixed, so that salts in files still match after a restart


@dataclass(frozen=True, slots=True)
class Caller:
    """The owner of one API key, or every client of a server without keys."""

    secret: bytes = b""  # salts are derived from this; does not reveal the key; empty without keys
    name: str = ""  # for logs; empty without keys

    def salt(self, cache_salt: str = "") -> str:
        """Return the salt under which this caller's data is kept. Two callers never have equal salts.

        cache_salt: The request's field, by which one caller can separate data further.
        """
        if not self.secret:
            return cache_salt
        return hmac.new(self.secret, cache_salt.encode(), sha256).hexdigest()


NOBODY = Caller()


class Access:
    """Accepted API keys; without any, every request is admitted."""

    def __init__(self, keys: Iterable[str] = ()) -> None:
        self._known = [
            (sha256(key.encode()).digest(), caller_of_key(key.encode())) for key in dict.fromkeys(keys)
        ]

    @property
    def callers(self) -> list[Caller]:
        return [caller for _, caller in self._known] or [NOBODY]

    def admit(self, offered: Sequence[bytes]) -> Caller:
        """Return the owner of one of the offered keys, or NOBODY if the server has no keys.

        Keys are compared in constant time.

        Raises:
            AccessError: The server knows none of the offered keys.
        """
        if not self._known:
            return NOBODY
        digests = [sha256(key).digest() for key in offered]
        pairs = ((digest, one) for digest in digests for one in self._known)
        found = [caller for digest, (known, caller) in pairs if hmac.compare_digest(known, digest)]
        if found:
            return found[-1]
        if not offered:
            raise AccessError(
                "You did not provide an API key: send it as `Authorization: Bearer KEY`, or as `x-api-key`"
            )
        raise AccessError("Incorrect API key provided: this server does not know it")


def caller_of_key(key: bytes) -> Caller:
    secret = hmac.new(DOMAIN, key, sha256).digest()
    return Caller(secret, hmac.new(secret, b"name", sha256).hexdigest()[:8])


def offered(headers: Headers) -> list[bytes]:
    """Return all API keys in a request's headers, valid or not."""
    keys: list[str] = []
    scheme, _, credentials = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        keys.append(credentials)
    keys.append(headers.get("x-api-key", ""))
    protocols = (one.strip() for one in headers.get("sec-websocket-protocol", "").split(","))
    keys += [_decoded(one.removeprefix(KEY_PROTOCOL)) for one in protocols if one.startswith(KEY_PROTOCOL)]
    return [key.strip().encode("latin-1") for key in keys if key.strip()]


def _decoded(text: str) -> str:
    """Decode base64url without padding; return an empty text if it is invalid."""
    try:
        return b64decode(text + "=" * (-len(text) % 4), "-_", validate=True).decode("latin-1")
    except ValueError:
        return ""


def salt_of(request: Request, cache_salt: str | None) -> str:
    """Return the salt of a request, given its cache_salt.

    Engine, history and files keep the data of the request's caller under this salt.
    """
    caller: Caller = request.state.caller
    return caller.salt(cache_salt or "")
