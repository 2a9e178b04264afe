#!/usr/bin/env bash
# resumable-sse 0.1.0, fastapi-resumable-stream 0.2.1 and resumable-stream 0.2.0 (of PyPI), which keep a streamed reply in Redis, so that
# a client that lost its connection gets the rest of it.
# Expected: a reply whose source fails (the server of the model is gone, say) ends otherwise than a whole one. A client of resumable-sse
#           that tells the id of the last event that it has seen (`last_id`, "used with `Last-Event-ID`") gets what follows, once.
#           `create_new_resumable_stream` of resumable-stream returns None for an id that exists, as its documentation has it.
# Seen:     with all three the failed reply ends like a whole one: resumable-sse sends its event `end`, fastapi-resumable-stream has the
#           status `done`; resumable-stream ends too, yet says for ever that the reply goes on. In memory resumable-sse sends
#           the last event again (in Redis it does not); and with Redis, who comes back with the last id once a reader has seen the
#           end gets another whole reply. `create_new_resumable_stream` asks the model a second time under the same id.
#           The call that its documentation begins with, `create_resumable_stream_context(redis_url=...)`, raises TypeError.
source "$(dirname "$0")/begin.sh"
from_pypi resumable-sse==0.1.0 fastapi-resumable-stream==0.2.1 resumable-stream==0.2.0 redis==8.1.0 fakeredis==2.41.0
python - 2>errors <<'PY' || { cat errors; exit 1; }
import asyncio
from importlib.metadata import version

import fakeredis
from fastapi_resumable_stream import ResumableStream
from resumable_sse.factory import get_streamer
from resumable_stream import create_resumable_stream_context


async def reply(*, fails=False):
    for word in ("one", "two", "three"):
        yield word
        await asyncio.sleep(0.1)
        if fails and word == "two":
            raise ConnectionError


class NoSubscriber:
    """Is told of no client that comes back, since none does here."""

    async def subscribe(self, channel, callback):
        pass

    async def unsubscribe(self, channel):
        pass


async def listed(stream):
    return [piece.get("data") or piece["event"] if isinstance(piece, dict) else piece async for piece in stream]


async def main():
    print(*(f"{name} {version(name)}" for name in ("resumable-sse", "fastapi-resumable-stream", "resumable-stream")))
    for backend, again, after_end in (("memory", ["two", "three", "end"], ["three", "end"]), ("redis", ["three", "end"], ["one", "two", "three", "end"])):
        sse = get_streamer(backend, redis_client=fakeredis.FakeAsyncRedis())
        whole, failed = await listed(sse.stream("a", reply())), await listed(sse.stream("b", reply(fails=True)))
        first = [event async for event in sse.stream("c", reply())]
        later = await listed(sse.stream("c", reply(), last_id=first[-2]["id"]))
        stream, seen = sse.stream("d", reply()), []
        while len(seen) < 2:
            seen.append(await anext(stream))
        rest = await listed(sse.stream("d", reply(), last_id=seen[-1]["id"]))
        print(f"resumable-sse, {backend}: {whole}, failed {failed}, after {seen[-1]['data']} {rest}, after the end {later}")
        assert (whole, failed, rest, later) == (["one", "two", "three", "end"], ["one", "two", "end"], again, after_end), "changed"
    kept = ResumableStream(fakeredis.FakeAsyncRedis())
    seen = await listed(await kept.start("b", lambda: reply(fails=True))), await kept.status("b")
    print("fastapi-resumable-stream, failed:", seen)
    assert seen == (["one", "two"], "done"), "changed"
    try:
        create_resumable_stream_context(redis_url="redis://localhost")
    except TypeError as error:
        print("resumable-stream:", error)
    else:
        raise AssertionError("changed")
    context = create_resumable_stream_context(publisher=fakeredis.FakeAsyncRedis(decode_responses=True), subscriber=NoSubscriber())
    seen = await listed(await context.resumable_stream("b", lambda: reply(fails=True))), await context.has_existing_stream("b")
    print("resumable-stream, failed:", seen)
    assert seen == (["one", "two"], True), "changed"
    seen = [await context.create_new_resumable_stream("e", reply) for _ in range(2)]
    seen = await asyncio.gather(*map(listed, seen))
    print("resumable-stream, created twice:", seen)
    assert seen == 2 * [["one", "two", "three"]], "changed"


asyncio.run(main())
PY
