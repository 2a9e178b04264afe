"""Measure the cost of storing a reply: `python -m benchmarks.stored`.

Prints CPU time per token of the event loop's thread and of the thread that writes to Redis. A plain stream is
compared with one that is also stored in Redis, so that another lead can continue it. Storing takes nothing of
the engine's thread. A script stands for the model; API and (private) Redis are real.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from server.api.services import Services
from server.engine.events import Finished, Stats
from server.local.embedded import EmbeddedServer
from server.replies.memory import MemoryStore
from server.replies.redis_store import LeadGroup, RedisStore
from tests.server.api.scripted import Call, Script
from tests.server.api.test_responses import STARTED, serving, step

TOKENS_S = 100  # tokens per second of each reply, as of a small model on a GPU
MICRO = 1e6


async def replies(scripts: list[Script], states: list[Services], n_tokens: int, body: dict[str, Any]) -> None:
    """Stream all replies at once, one token of each at a time."""
    calls = [
        Call(state, path="/v1/responses", body={"input": "hello", "stream": True, **body}) for state in states
    ]
    running = [asyncio.ensure_future(call.run()) for call in calls]
    for _ in range(n_tokens):
        await asyncio.sleep(1 / TOKENS_S)
        for script in scripts:
            script.tell(step("a"))
    for script in scripts:
        script.tell(Finished("stop", Stats(5, 2, n_tokens, n_tokens, 1.0, 2.0)))
    await asyncio.gather(*running)
    assert all(call.status == 200 for call in calls)


def measured(work: Callable[[], Awaitable[None]], store: RedisStore | None) -> tuple[float, float]:
    """Return the CPU seconds of this thread during `work`, and of the thread that writes to Redis."""

    async def run() -> tuple[float, float]:
        began = time.thread_time()
        await work()
        spent = time.thread_time() - began
        thread: Any = store and store._link._thread  # pyright: ignore[reportPrivateUsage]
        beside = time.clock_gettime(time.pthread_getcpuclockid(thread.ident)) if thread else 0.0
        if store:
            await store.close()
        return spent, beside

    return asyncio.run(run())


def cost(n_replies: int, n_tokens: int, url: str | None) -> tuple[float, float]:
    """Return microseconds of CPU time for a reply: of the event loop's thread, and of the store's.

    url: The Redis that stores the replies; None: they are not stored.
    """
    store = RedisStore(url, "stored", group=LeadGroup("group", "lead")) if url else None
    scripts = [Script(STARTED) for _ in range(n_replies)]
    states = [replace(serving(script), replies=store or MemoryStore()) for script in scripts]
    body = {"background": True} if url else {"store": False}
    spent = measured(lambda: replies(scripts, states, n_tokens, body), store)
    return spent[0] / n_replies * MICRO, spent[1] / n_replies * MICRO


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.stored", description=__doc__)
    parser.add_argument("--replies", type=int, default=8, help="at once")
    parser.add_argument("--n", type=int, default=400, help="tokens of each")
    args = parser.parse_args(arguments)
    few = args.n // 4
    with EmbeddedServer() as server:
        cost(1, few, server.url)  # what is loaded and compiled once
        short, long = ([cost(args.replies, n, url) for url in (None, server.url)] for n in (few, args.n))
    print("| µs of CPU time | of a token, plain | stored | of a reply besides, plain | stored |")
    print("| --- | ---: | ---: | ---: | ---: |")
    for i, thread in enumerate(("event loop", "writing to Redis")):
        tokens = [(more[i] - less[i]) / (args.n - few) for less, more in zip(short, long, strict=True)]
        fixed = [more[i] - args.n * one for more, one in zip(long, tokens, strict=True)]
        print(f"| {thread} | {tokens[0]:.1f} | {tokens[1]:.1f} | {fixed[0]:.0f} | {fixed[1]:.0f} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
