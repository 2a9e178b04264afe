"""A drafter that dies during a long reply: the lead goes on at once, and a new one helps within a second."""

from __future__ import annotations

import asyncio
import signal
import time
from contextlib import ExitStack, closing

import pytest

from drafters.settings import BUNDLED_MODEL
from server.embedded import EmbeddedServer
from server.engine.events import Committed
from server.engine.request import GenerationRequest
from server.llama.backend import Batch, Logits
from server.llama.llamacpp import LlamaBackend
from server.sampling.params import SamplingParams
from tests.model.live import DrafterProcess, Padded, lead

pytestmark = [pytest.mark.model, pytest.mark.redis]

STEP_S = 0.01


class Paced(Padded):
    """A slower target, so that there is a middle of the reply."""

    def decode(self, batch: Batch) -> Logits:
        time.sleep(STEP_S)
        return super().decode(batch)


async def test_a_drafter_killed_and_restarted_helps_again_within_a_second(
    q8_target: LlamaBackend, server: EmbeddedServer
):
    prompt = q8_target.vocab.tokenize("<|im_start|>user\nCount from 3 to 14.<|im_end|>\n", special=True)
    request = GenerationRequest(prompt, SamplingParams(0.0), max_tokens=1200)
    gaps: list[float] = []
    helped: dict[str, float] = {}  # when each drafter's first guess was accepted
    with ExitStack() as stack:
        first = stack.enter_context(closing(DrafterProcess(server.url, BUNDLED_MODEL)))
        async with lead(Paced(q8_target), server) as live:
            await live.until_drafters(1)
            assert live.remote is not None
            generation = live.thread.submit(request)

            async def follow() -> None:
                at = time.monotonic()
                async for event in generation:
                    now = time.monotonic()
                    gaps.append(now - at)
                    at = now
                    if isinstance(event, Committed):
                        for source in event.sources:
                            if source:
                                helped.setdefault(source, now)

            following = asyncio.create_task(follow())
            while not helped:
                await asyncio.sleep(0.01)
            first.signal(signal.SIGKILL)
            stack.enter_context(closing(DrafterProcess(server.url, BUNDLED_MODEL)))
            while not {r.presence.id for r in live.remote.drafters()} - helped.keys():
                await asyncio.sleep(0.005)
            ready = time.monotonic()
            while len(helped) < 2 and not following.done():
                await asyncio.sleep(0.005)
            generation.cancel()
            await following
    assert len(helped) == 2, "the second drafter never helped"
    assert max(helped.values()) - ready < 1.0
    assert sorted(gaps)[len(gaps) // 2] < 5 * STEP_S
    assert max(gaps) < 1.0, "the lead waited for somebody"
