"""Connect to a Redis server by its URL, and check that it is usable."""

from __future__ import annotations

import logging
import time
from typing import Any, TypeAlias, cast
from urllib.parse import unquote, urlsplit

import redis
from redis.backoff import NoBackoff
from redis.connection import parse_url  # pyright: ignore[reportUnknownVariableType]
from redis.exceptions import AuthenticationError, RedisError, ResponseError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.retry import Retry
from redis.sentinel import MasterNotFoundError, Sentinel, SentinelConnectionPool

from server.errors import StartupError
from server.speculation.wire.intake import HEARTBEAT_S
from server.speculation.wire.redis_url import SENTINEL, shown_url, split_url

# Maximum attempts of a start to ask a server that does not answer in time: with 200 ms each way and 5 percent
# of packets lost, some answers take longer. Half: some starts fail there; twice: a wrong address is reported
# after 12 s.
TRIES = 3
# Seconds that a start waits while the sentinels' master is down: twice the 30 s after which sentinels promote
# a replica by default (down-after-milliseconds, Sentinel's documentation).
FAILOVER_S = 60.0
BACKOFF_S = (0.1, 1.0)  # seconds: first and longest pause before trying again
IO_TIMEOUT_S = 8 * HEARTBEAT_S  # seconds for the server to answer: a read may block for one heartbeat
OWN = "sentinel_"  # prefix of a URL's options that are for the sentinels
SENTINEL_PORT = 26379  # where sentinels listen, by their documentation

logger = logging.getLogger("duo.bus")

StreamEntry: TypeAlias = tuple[bytes, list[bytes]]  # id; field, value, field, value …


def check(url: str, pool: str = "default", member: str = "lead:check") -> None:
    """Raise StartupError, with advice, unless a usable server answers at this URL.

    Waits up to FAILOVER_S for sentinels to name a master.

    Args:
        url: URL of the server.
        pool: The pool of leads and drafters.
        member: "<role>:<id>", whose keys this process will use.
    """
    client = connect(url)
    client.set_retry(Retry(NoBackoff(), TRIES - 1, supported_errors=(RedisTimeoutError,)))
    place = shown_url(url)
    try:
        _ask_server(client, f"duo:{{{pool}}}:{member}")
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
    except MasterNotFoundError as error:  # whose words are long
        raise StartupError(
            f"no sentinel of {place} knows a master that is up: give their addresses, the name under which "
            "they watch it, and their password, if they want one, as ?sentinel_password=…"
        ) from error
    except (RedisError, OSError) as error:
        raise StartupError(
            f"cannot reach a Redis server at {place} ({error}): start it, or give the right URL with --redis"
        ) from error
    finally:
        client.close()


def _ask_server(client: redis.Redis, key: str) -> None:
    """Raise a RedisError unless the server takes commands for this key. Waits for a running failover."""
    deadline = time.monotonic() + FAILOVER_S
    waits = False
    while True:
        try:
            client.ping()
            # Answers 0 for a missing key; a server before 6.2 calls it a syntax error.
            client.execute_command("XTRIM", key, "MINID", "0-0")
            return
        except AuthenticationError:
            raise
        except (RedisConnectionError, RedisTimeoutError):
            if time.monotonic() > deadline or not (isinstance(client, _Following) and client.is_watched()):
                raise
        if not waits:
            logger.warning("the sentinels' master is down; waiting up to %.0f s for another", FAILOVER_S)
        waits = True
        time.sleep(BACKOFF_S[0])


def connect(url: str) -> redis.Redis:
    """Return a client that fails at once instead of retrying. Raises StartupError for a bad URL."""
    timeouts = {"socket_timeout": IO_TIMEOUT_S, "socket_connect_timeout": IO_TIMEOUT_S}
    common = {"protocol": 2, "retry": Retry(NoBackoff(), 0), "driver_info": None, **timeouts}
    try:
        by_sentinels = SENTINEL in split_url(url).scheme
        client = _by_sentinels(url, common) if by_sentinels else redis.Redis.from_url(url, **common)
        pool = client.connection_pool
        pool.connection_class(**pool.connection_kwargs)  # not connected: a bad option is told here
    except (ValueError, TypeError, RedisError) as error:
        reason = " ".join(str(error).split())  # some of them have several lines
        raise StartupError(
            f"not a Redis URL ({reason}): give redis://[user:password@]host[:port][/db], "
            "rediss://… for TLS, unix:///path/to/socket, or redis+sentinel://…@host:port,host:port/service"
        ) from error
    client.set_response_callback("XREAD", _stream_entries)
    return client


class _Following(redis.Redis):
    """A client of the current master. Each new connection asks the sentinels which server that is."""

    @property
    def _pool(self) -> SentinelConnectionPool:
        return cast(SentinelConnectionPool, self.connection_pool)

    def is_watched(self) -> bool:
        """Return True if a sentinel answers that watches the service, even if its master is down."""
        for sentinel in cast(list[redis.Redis], self._pool.sentinel_manager.sentinels):
            try:
                if self._pool.service_name in sentinel.sentinel_masters():
                    return True
            except RedisError:
                continue
        return False

    def close(self) -> None:
        super().close()
        self._pool.sentinel_manager.close()


def _by_sentinels(url: str, common: dict[str, Any]) -> redis.Redis:
    """Return a client for redis+sentinel://[user:password@]host[:port],host[:port]/service[/db][?option=…].

    Options whose names begin with sentinel_ are for the sentinels; user, password and all other options are
    for the server; `common` is for both. The scheme rediss+sentinel means TLS to both. Raises ValueError.
    """
    parts = split_url(url)
    scheme = parts.scheme.removesuffix(SENTINEL)
    service, _, db = parts.path.strip("/").partition("/")
    account, at, places = parts.netloc.rpartition("@")
    addresses = [_address_of(place) for place in places.split(",")]
    if not service:
        raise ValueError("it names no service behind the sentinels' addresses")
    said = cast(dict[str, Any], parse_url(f"{scheme}://{account}{at}master/{db}?{parts.query}"))
    common = common | {"ssl": scheme == "rediss"}
    common |= {name: value for name, value in said.items() if name.startswith("ssl")}
    own = {name: value for name, value in said.items() if name.startswith(OWN)}
    server = {name: said[name] for name in said.keys() - own.keys() - {"host", "connection_class"}}
    own = {name.removeprefix(OWN): value for name, value in own.items()}
    sentinels = Sentinel(addresses, sentinel_kwargs=common | own)
    options: dict[str, Any] = common | server
    return sentinels.master_for(unquote(service), _Following, **options)


def _address_of(place: str) -> tuple[str, int]:
    parts = urlsplit(f"//{place}")
    if not parts.hostname:
        raise ValueError(f"{place!r} is no address of a sentinel")
    return parts.hostname, parts.port or SENTINEL_PORT


def _stream_entries(reply: Any, **_: Any) -> list[StreamEntry]:
    """Return XREAD's entries of a single stream: RESP2 sends [[name, entries]], RESP3 a map."""
    if not reply:
        return []
    streams = cast(dict[bytes, Any], reply).values() if isinstance(reply, dict) else [reply[0][1]]
    return [(entry, fields) for entries in streams for entry, fields in entries]
