#!/usr/bin/env bash
# ioredis-mock 8.13.1, a stand-in for Redis in tests of Node programs, with Redis Streams.
# Expected: XADD with an id of the caller's adds this id; XREAD from `$` waits for what comes later; XREAD with COUNT reads up to
#           that number from each stream. fakeredis 2.41.0 does so (as does Redis 7).
# Seen:     `1-1` becomes `1-1-0`, which is no id of a stream, so whoever goes on from where it stopped by ids of its own
#           finds others; XREAD from `$` gives entries that were there before; two streams with COUNT give none at all. With ids
#           from `*`, and one stream, it does as expected.
source "$(dirname "$0")/begin.sh"
from_pypi fakeredis==2.41.0
from_npm ioredis-mock@8.13.1 ioredis@5.11.1
cat > commands.json <<'JSON'
[["xadd", "s", "1-1", "a", "1"], ["xadd", "s", "1-2", "a", "2"],
 ["xread", "STREAMS", "s", "$"], ["xread", "COUNT", "1", "STREAMS", "s", "t", "0", "0"]]
JSON
cat > ask.mjs <<'JS'
import { readFileSync } from "node:fs";
import Redis from "ioredis-mock";
const redis = new Redis();
const replies = [];
for (const [name, ...rest] of JSON.parse(readFileSync("commands.json"))) replies.push(await redis[name](...rest));
console.log(JSON.stringify(replies));
redis.disconnect();
JS
node ask.mjs > theirs.json
python - <<'PY'
import json
from importlib.metadata import version

import fakeredis

redis = fakeredis.FakeRedis(decode_responses=True)
commands = json.load(open("commands.json"))
right = [redis.execute_command(*command) for command in commands]
theirs = json.load(open("theirs.json"))
for command, fake, mock in zip(commands, right, theirs):
    print(f"{' '.join(command)}: fakeredis {version('fakeredis')} {fake}, ioredis-mock 8.13.1 {mock}")
assert right[:2] == ["1-1", "1-2"] and not right[2], right
assert theirs[:2] == ["1-1-0", "1-2-0"], "changed"
assert theirs[2] == [["s", [["1-1-0", ["a", "1"]], ["1-2-0", ["a", "2"]]]]], "changed"
assert theirs[3] == [["s", []], ["t", []]], "changed"
PY
