"""A lead with drafters over a real Redis, for tests with real models."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import SimpleQueue

from drafters.worker import Worker
from server.drafting.model_drafter import ModelDrafter
from server.engine.engine import Engine
from server.engine.proposer import NoProposer, Proposer, Upcoming
from server.engine.request import Exactness, GenerationRequest
from server.engine.scheduler import Limits
from server.engine.thread import EngineThread
from server.llama.backend import Backend, Batch, Logits
from server.llama.llamacpp import LlamaBackend, LlamaOptions
from server.local.embedded import EmbeddedServer
from server.speculation.policy import Policy
from server.speculation.sources.draft_model import DraftModel
from server.speculation.sources.remote import RemoteDrafters
from server.speculation.speculator import Speculator
from server.speculation.step import DraftPlan
from server.speculation.wire.bus import Listener
from server.speculation.wire.messages import Message
from server.speculation.wire.presence import Presence, vocabulary_card
from server.speculation.wire.streams import RedisBus
from tests.checks import check_engine
from tests.support import Outcome

READY_S = 60.0  # a drafter's process starts in a twentieth of it on an idle machine


class DrafterProcess:
    """A duo-drafter process that a test may signal."""

    def __init__(self, url: str, model: Path, *flags: str) -> None:
        command = [
            sys.executable,
            "-m",
            "drafters",
            "--redis",
            url,
            "--model",
            str(model),
            "--end-with-parent",
        ]
        self._process = subprocess.Popen([*command, *flags], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)

    def signal(self, number: signal.Signals) -> None:
        os.kill(self._process.pid, number)

    def close(self) -> None:
        self.signal(signal.SIGCONT)
        self._process.kill()
        self._process.wait()
        if self._process.stdin:
            self._process.stdin.close()


class ThreadedDrafter:
    """A drafter on a thread of this process.

    Each message to a lead is sent `copies` times, delay_s late.
    """

    def __init__(self, url: str, model: Path, *, copies: int = 1, delay_s: float = 0.0) -> None:
        self._backend = LlamaBackend(LlamaOptions(model, n_cells=8192, n_seqs=8))
        card = vocabulary_card(self._backend.vocab)
        own = Presence(f"threaded-{time.monotonic_ns()}", "drafter", "test", "0", card, 4)
        self._bus = RedisBus(url, "default", own)
        self._copies, self._delay_s = copies, delay_s
        self._held: SimpleQueue[tuple[float, str, Message] | None] = SimpleQueue()
        self._releaser = threading.Thread(target=self._release)
        self._releaser.start()
        self._worker = Worker(self, own, ModelDrafter(self._backend))
        self._thread = threading.Thread(target=self._worker.run)
        self._bus.start(self._worker)
        self._thread.start()

    def start(self, listener: Listener) -> None:
        raise AssertionError("started already")

    def send(self, to: str, message: Message) -> None:
        for _ in range(self._copies):
            self._held.put((time.monotonic() + self._delay_s, to, message))

    def _release(self) -> None:
        """Send held messages in order, each when it is due."""
        while (held := self._held.get()) is not None:
            due, to, message = held
            time.sleep(max(0.0, due - time.monotonic()))
            self._bus.send(to, message)

    def describe(self, presence: Presence) -> None:
        self._bus.describe(presence)

    def close(self) -> None:
        self._worker.stop()
        self._thread.join()
        self._held.put(None)
        self._releaser.join()
        self._bus.close()
        self._backend.close()


class Padded:
    """A Backend that adds a dummy row, in a spare sequence, to each batch of one row.

    So all rows use the kernels for several rows.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._spare = backend.n_seqs - 1
        self.name, self.vocab, self.chat_template = backend.name, backend.vocab, backend.chat_template
        self.n_cells, self.n_ctx = backend.n_cells - 1, backend.n_ctx
        self.n_batch, self.n_seqs = backend.n_batch - 1, backend.n_seqs - 1
        self.can_trim, self.can_copy, self.can_shift = backend.can_trim, backend.can_copy, backend.can_shift
        self.can_share, self.n_tail = backend.can_share, backend.n_tail
        self.overlaps = backend.overlaps
        self.n_trees = 0  # decodes of trees with several leaves

    def decode(self, batch: Batch) -> Logits:
        self.n_trees += bool(batch.shared)
        if len(batch) > 1:
            return self._backend.decode(batch)
        batch.extend(self._spare, 0, [0], 0)
        logits = self._backend.decode(batch)
        self._backend.trim(self._spare, 0)
        return logits

    def start(self, batch: Batch) -> Callable[[], Logits]:
        return partial(self.decode, batch)

    def trim(self, seq: int, length: int) -> None:
        self._backend.trim(seq, length)

    def copy(self, source: int, target: int, start: int, end: int) -> None:
        self._backend.copy(source, target, start, end)

    def length(self, seq: int) -> int:
        return self._backend.length(seq)

    def intact(self, seq: int, length: int) -> bool:
        return self._backend.intact(seq, length)

    def save(self, seq: int) -> bytes:
        return self._backend.save(seq)

    def load(self, seq: int, data: bytes) -> None:
        self._backend.load(seq, data)

    def shift(self, seq: int, start: int, end: int) -> None:
        self._backend.shift(seq, start, end)

    def close(self) -> None:
        pass


PAUSES_S = (0.005, 0.05, 0.5)
"""Before each step, the next one if the machine was too busy for drafters to be in time."""

ALL = Policy(lookup=False, gate=False)
"""Verify every guess."""


@dataclass(frozen=True, slots=True)
class How:
    """How a lead speculates.

    pause_s: before each step, so that drafters are in time although the target is small.
    """

    draft_max: int = 8
    policy: Policy = ALL
    inline: DraftModel | None = None
    exactness: Exactness = "default"
    pause_s: float = 0.0


class Unhurried(Speculator):
    """A source that sleeps for pause_s before it reads what arrived."""

    pause_s = 0.0

    def plan(self, step: Upcoming) -> DraftPlan:
        time.sleep(self.pause_s)
        return super().plan(step)


class LiveLead:
    """An engine thread over a backend.

    server: the Redis of its drafters, None for no drafters.
    """

    def __init__(self, backend: Backend, server: EmbeddedServer | None, how: How) -> None:
        self.remote: RemoteDrafters | None = None
        self._bus: RedisBus | None = None
        if server is not None:
            own = Presence(
                f"lead-{time.monotonic_ns()}", "lead", "test", "0", vocabulary_card(backend.vocab), 4
            )
            self._bus = RedisBus(server.url, "default", own)
            self.remote = RemoteDrafters(self._bus, own, max_ahead=3 * how.draft_max)
            self._bus.start(self.remote)
        proposer: Proposer = NoProposer()
        if self.remote or how.inline or how.policy.lookup:
            proposer = Unhurried(how.policy, remote=self.remote, inline=how.inline)
            proposer.pause_s = how.pause_s
        limits = Limits(n_batch=backend.n_batch, draft_max=how.draft_max, exactness=how.exactness)
        self.thread = EngineThread(
            lambda emit: Engine(backend, proposer, emit, limits=limits), n_ctx=backend.n_ctx
        )

    async def run(
        self, requests: Sequence[GenerationRequest], during: Callable[[int], None] | None = None
    ) -> list[Outcome]:
        """Run all requests at once to their ends, calling during(n) at each event with n committed tokens."""
        outcomes = [Outcome() for _ in requests]

        async def follow(request: GenerationRequest, outcome: Outcome) -> None:
            async for events in self.thread.submit(request):
                for event in events:
                    outcome.events.append(event)
                    if during:
                        during(sum(len(one.tokens) for one in outcomes))

        await asyncio.gather(*map(follow, requests, outcomes))
        return outcomes

    async def until_drafters(self, n: int) -> None:
        """Wait until n drafters are accepted."""
        assert self.remote is not None
        deadline = time.monotonic() + READY_S
        while len([record for record in self.remote.drafters() if not record.refusal]) != n:
            assert time.monotonic() < deadline, "the drafters did not come"
            await asyncio.sleep(0.02)

    async def stop(self) -> None:
        await self.thread.stop()
        if self._bus is not None:
            self._bus.close()


@asynccontextmanager
async def lead(
    backend: Backend, server: EmbeddedServer | None, how: How | None = None, *, draft_max: int = 8
) -> AsyncGenerator[LiveLead]:
    """Yield a running lead and check the engine at the end.

    draft_max is used if `how` is not given.
    """
    live = LiveLead(backend, server, how or How(draft_max))
    live.thread.start()
    try:
        yield live
        check_engine(live.thread.engine)
    finally:
        await live.stop()
