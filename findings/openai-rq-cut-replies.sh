#!/usr/bin/env bash
# openai-rq 0.1.2, which carries the requests of OpenAI's SDK over Redis Streams to a worker beside the server.
# Expected: its documentation says that all but the constructor works unchanged, streaming and handling of errors too, and that a
#           consumer group spreads the jobs. So a reply whose connection breaks raises (OpenAI's SDK 3.57.0 raises), words come
#           as the server sends them, and each request is answered once.
# Seen:     the reply whose connection breaks ends like a whole one: the worker writes the error as text among the events, where it is
#           none. Lines that end with CRLF (sse-starlette sends them) all come at the end. A reply that takes longer than
#           `reclaim_min_idle_ms` (60 s unless told, 2 s here) is asked for a second time by the same worker. The client gets
#           both, one within the other.
source "$(dirname "$0")/begin.sh"
from_pypi openai-rq==0.1.2 openai==3.57.0 redis==8.1.0 fakeredis==2.41.0 httpx==0.28.1
python - <<'PY'
import asyncio
import json
import time
from importlib.metadata import version

import fakeredis
import httpx
from openai import APIConnectionError, AsyncOpenAI
from openai_rq import AsyncOpenAIRQ
from openai_rq.worker import HTTPBackend, Worker

asked = []


def reply(request):
    asked.append(model := json.loads(request.content)["model"])

    async def words():
        for word in ("one", "two") if model == "cut" else ("one", "two", "three", "four"):
            chunk = json.dumps({"choices": [{"index": 0, "delta": {"content": word}}]})
            yield f"data: {chunk}".encode() + 2 * (b"\r\n" if model == "crlf" else b"\n")
            await asyncio.sleep(2 if model == "slow" else 0.4)
        if model == "cut":
            raise httpx.ReadError("")

    return httpx.Response(200, headers={"content-type": "text/event-stream"}, content=words())


async def read(client, model):
    start, words = time.monotonic(), []
    try:
        async for chunk in await client.chat.completions.create(model=model, messages=[{"role": "user", "content": ""}], stream=True):
            words.append((chunk.choices[0].delta.content, round(time.monotonic() - start, 1)))
    except APIConnectionError:
        words.append(("error", 0))
    print(type(client).__name__, model, *words)
    return " ".join(word for word, _ in words), words[0][1] < words[-1][1]


async def main():
    print(*(f"{name} {version(name)}" for name in ("openai-rq", "openai")))
    http, redis = httpx.AsyncClient(transport=httpx.MockTransport(reply)), fakeredis.FakeServer()
    here, there = (fakeredis.FakeAsyncRedis(server=redis) for _ in range(2))
    backend = HTTPBackend(base_url="http://server/v1", client=http)
    worker = asyncio.create_task(Worker(redis_client=there, backend=backend, reclaim_min_idle_ms=2000).run())
    sdk, rq = AsyncOpenAI(api_key="none", max_retries=0, http_client=http), AsyncOpenAIRQ(redis_client=here)
    assert await read(sdk, "crlf") == await read(rq, "lf") == ("one two three four", True)
    assert (await read(sdk, "cut"))[0] == "one two error"
    assert (await read(rq, "cut"))[0] == "one two", "changed"
    assert await read(rq, "crlf") == ("one two three four", False), "changed"
    assert (await read(rq, "slow"))[0].startswith("one two one two"), "changed"
    print("times that the server was asked:", asked.count("slow"))
    assert asked.count("slow") > 1, "changed"
    worker.cancel()


asyncio.run(main())
PY
