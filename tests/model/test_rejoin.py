"""A drafter that joins during a long reply, as the first or after a crash.

Its guesses are soon accepted, and the lead never waits for it.
"""

from __future__ import annotations

import asyncio
import signal
import time
from contextlib import ExitStack, closing
from statistics import median

import pytest

from drafters.drafter_settings import BUNDLED_MODEL
from server.engine.events import Committed
from server.engine.generate import Generation
from server.engine.request import GenerationRequest
from server.llama.backend import Batch, Logits
from server.llama.llamacpp import LlamaBackend
from server.local.embedded import EmbeddedServer
from server.sampling.params import SamplingParams
from tests.model.live import READY_S, DrafterProcess, LiveLead, Padded, lead

pytestmark = [pytest.mark.model, pytest.mark.redis]

STEP_S = 0.01
N_CONTEXT = 1000
N_TOKENS = 2900  # of a reply: it lasts until a drafter has started, however long that takes


class Paced(Padded):
    """A target slowed by STEP_S a step, so that drafters join while it decodes.

    decodes: seconds of each.
    """

    def __init__(self, backend: LlamaBackend) -> None:
        super().__init__(backend)
        self.decodes: list[float] = []

    def decode(self, batch: Batch) -> Logits:
        began = time.monotonic()
        time.sleep(STEP_S)
        logits = super().decode(batch)
        self.decodes.append(time.monotonic() - began)
        return logits


class Watch:
    """Records the times of one generation's events on the event loop."""

    def __init__(self, live: LiveLead, generation: Generation) -> None:
        self.gaps: list[float] = []  # seconds between two events
        self.helped: dict[str, float] = {}  # when each drafter's first guess was accepted
        self.joined: dict[str, float] = {}  # when the lead first knew of it
        self.n_tokens = 0
        self._live, self._generation = live, generation
        self._following = asyncio.create_task(self._follow())

    async def _follow(self) -> None:
        at = time.monotonic()
        async for events in self._generation:
            for event in events:
                now = time.monotonic()
                self.gaps.append(now - at)
                at = now
                if isinstance(event, Committed):
                    self.n_tokens += len(event.tokens)
                    for source in filter(None, event.sources):
                        self.helped.setdefault(source, now)

    async def until_helped(self, n: int) -> None:
        """Wait until guesses of n drafters were accepted."""
        assert self._live.remote is not None
        deadline = time.monotonic() + READY_S
        while len(self.helped) < n:
            assert not self._following.done(), "the reply ended before"
            assert time.monotonic() < deadline, f"only {len(self.helped)} of {n} drafters helped"
            for record in self._live.remote.drafters():
                self.joined.setdefault(record.presence.id, time.monotonic())
            await asyncio.sleep(0.002)

    async def until_tokens(self, n: int) -> None:
        while self.n_tokens < n:
            assert not self._following.done(), "the reply ended before"
            await asyncio.sleep(0.002)

    def took(self) -> float:
        """Return the seconds from joining to the first accepted guess of the latest drafter."""
        last = max(self.joined, key=lambda id: self.joined[id])
        return self.helped[last] - self.joined[last]

    async def end(self) -> None:
        self._generation.cancel()
        await self._following


async def test_a_drafter_killed_and_restarted_helps_again(q8_target: LlamaBackend, server: EmbeddedServer):
    prompt = q8_target.vocab.tokenize("<|im_start|>user\nCount from 3 to 14.<|im_end|>\n", special=True)
    request = GenerationRequest(prompt, SamplingParams(0.0), max_tokens=N_TOKENS)
    target = Paced(q8_target)
    with ExitStack() as stack:
        first = stack.enter_context(closing(DrafterProcess(server.url, BUNDLED_MODEL)))
        async with lead(target, server) as live:
            await live.until_drafters(1)
            watch = Watch(live, live.thread.submit(request))
            await watch.until_helped(1)
            first.signal(signal.SIGKILL)
            stack.enter_context(closing(DrafterProcess(server.url, BUNDLED_MODEL)))
            await watch.until_helped(2)
            await watch.end()
    print(f"after a restart: helped {watch.took():.3f} s after it was there")
    assert median(watch.gaps) < 3 * median(target.decodes), "the lead waits for more than its model"


async def test_joining_drafter_helps_soon(q8_target: LlamaBackend, server: EmbeddedServer):
    vocabulary = q8_target.vocab
    turns = [
        f"<|im_start|>user\nCount from {i} to {i + 9}.<|im_end|>\n<|im_start|>assistant\n"
        + ", ".join(map(str, range(i, i + 10)))
        + "<|im_end|>\n"
        for i in range(60)
    ]
    tokens = vocabulary.tokenize("".join(turns), special=True)
    ask = vocabulary.tokenize("<|im_start|>user\nCount from 3 to 14.<|im_end|>\n", special=True)
    prompt = [*tokens[: N_CONTEXT - len(ask)], *ask]
    assert len(prompt) == N_CONTEXT
    request = GenerationRequest(prompt, SamplingParams(0.0), max_tokens=N_TOKENS)
    target = Paced(q8_target)
    with ExitStack() as stack:
        async with lead(target, server) as live:
            watch = Watch(live, live.thread.submit(request))
            await watch.until_tokens(5)
            stack.enter_context(closing(DrafterProcess(server.url, BUNDLED_MODEL)))
            await watch.until_helped(1)
            await watch.end()
    print(f"{N_CONTEXT} tokens: helped {watch.took():.3f} s after it had joined")
    assert median(watch.gaps) < 3 * median(target.decodes), "the lead waits for more than its model"
