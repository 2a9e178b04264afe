#!/usr/bin/env bash
# burner-redis 0.1.7, a Redis within the process, made as a drop-in for `redis.asyncio.Redis` with consumer groups of Streams.
# Expected: XREADGROUP with NOACK leaves nothing pending, and a consumer that asks for what it has not acknowledged yet (id 0)
#           gets all of it, deleted entries without fields, so that it can acknowledge them. fakeredis 2.41.0 does both.
# Seen:     `noack=True` is taken and ignored: every entry stays pending, and whoever claims idle entries gets all of them a
#           second time. Deleted entries are left out of the history, yet counted as pending.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" --quiet --disable-pip-version-check install burner-redis==0.1.7 fakeredis==2.41.0 redis==8.1.0
"$dir/venv/bin/python" - <<'PY'
import asyncio
from importlib.metadata import version

import fakeredis
from burner_redis import BurnerRedis


async def use(store):
    seen = {}
    for stream, noack in (("without", True), ("with", False)):
        for i in (1, 2):
            await store.xadd(stream, {"word": "a"}, id=f"{i}-0")
        await store.xgroup_create(stream, "workers", id="0")
        await store.xreadgroup("workers", "one", {stream: ">"}, noack=noack)
        if noack:
            claimed = (await store.xautoclaim(stream, "workers", "other", 0, "0-0"))[1]
            seen["claimed though read with NOACK"] = [id for id, _ in claimed]
        else:
            await store.xdel(stream, "1-0")
            history = await store.xreadgroup("workers", "one", {stream: "0"})
            seen["history"] = [id for id, _ in history[0][1]]
        seen[f"pending, noack={noack}"] = (await store.xpending(stream, "workers"))["pending"]
    return seen


theirs, right = asyncio.run(use(BurnerRedis())), asyncio.run(use(fakeredis.FakeAsyncRedis()))
print("burner-redis", version("burner-redis"), theirs)
print("fakeredis", version("fakeredis"), right)
claimed, history = "claimed though read with NOACK", "history"
none, some = "pending, noack=True", "pending, noack=False"
assert right == {claimed: [], none: 0, history: [b"1-0", b"2-0"], some: 2}, right
assert theirs == {claimed: [b"1-0", b"2-0"], none: 2, history: [b"2-0"], some: 2}, "changed"
PY
