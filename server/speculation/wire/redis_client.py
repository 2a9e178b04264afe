"""Connecting to a Redis server: what its URL means, and whether what answers there will do."""

from __future__ import annotations

from typing import Any, TypeAlias, cast
from urllib.parse import urlsplit

import redis
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, RedisError, ResponseError
from redis.retry import Retry

from server.errors import StartupError

IO_TIMEOUT_S = 2.0  # for the server to answer; well above the quarter of a second that a read may block

StreamEntry: TypeAlias = tuple[bytes, list[bytes]]  # id; field, value, field, value …


def check(url: str, pool: str = "default", member: str = "lead:check") -> None:
    """Raise a StartupError that says what to do unless a usable server answers at this URL. member:
    "<role>:<id>", whose keys this process will use."""
    client = connect(url)
    place = place_of(url)
    try:
        client.ping()
        # Answers 0 for a missing key; a server before 6.2 calls it a syntax error.
        client.execute_command("XTRIM", f"duo:{{{pool}}}:{member}", "MINID", "0-0")
    except AuthenticationError as error:
        raise StartupError(
            f"the Redis server at {place} wants a user or password ({error}): "
            "put them in the URL, as in redis://user:password@host:6379"
        ) from error
    except ResponseError as error:
        raise StartupError(
            f"the Redis server at {place} refused a command ({error}): duo needs Redis 6.2 or later, "
            f"and a user who may use the keys duo:{{{pool}}}:* that the role needs"
        ) from error
    except (RedisError, OSError) as error:
        raise StartupError(
            f"cannot reach a Redis server at {place} ({error}): start it, or give the right URL with --redis"
        ) from error
    finally:
        client.close()


def connect(url: str) -> redis.Redis:
    """A client that fails at once instead of retrying for seconds. Raises StartupError for a bad URL."""
    try:
        client = redis.Redis.from_url(
            url,
            protocol=2,
            socket_timeout=IO_TIMEOUT_S,
            socket_connect_timeout=IO_TIMEOUT_S,
            retry=Retry(NoBackoff(), 0),
            driver_info=None,
        )
    except ValueError as error:
        raise StartupError(
            f"not a Redis URL ({error}): give redis://[user:password@]host[:port][/db], "
            "rediss://… for TLS, or unix:///path/to/socket"
        ) from error
    client.set_response_callback("XREAD", _entries)
    return client


def place_of(url: str) -> str:
    """The URL without user, password and options, for people to read."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def _entries(reply: Any, **_: Any) -> list[StreamEntry]:
    """XREAD's entries of the only stream asked for: RESP2 sends [[name, entries]], RESP3 a map, both nil."""
    if not reply:
        return []
    streams = cast(dict[bytes, Any], reply).values() if isinstance(reply, dict) else [reply[0][1]]
    return [(entry, fields) for entries in streams for entry, fields in entries]
