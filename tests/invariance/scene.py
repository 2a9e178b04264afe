"""A lead over the toy model with its sources of guesses, and the faults that its drafters may have."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import TypeAlias, cast

from server.engine.scheduler import Limits
from server.llama.backend import Backend, Batch, Logits
from server.llama.with_block import WithBlock
from server.speculation.policy import Policy
from server.speculation.shape_times import ShapeTimes
from server.speculation.sources.block_draft import BlockDraft
from server.speculation.sources.inline import InlineModel
from server.speculation.sources.remote import RemoteDrafters
from server.speculation.speculator import Speculator
from server.speculation.step_times import StepTimes
from server.speculation.wire.presence import Presence, VocabularyCard, vocabulary_card
from tests.fake_backend import FakeBackend, FakeModel, FakeVocabulary
from tests.invariance.scripted import TRUTH, LyingDrafter, ScriptedDrafter, Shape, StaleDrafter
from tests.memory_bus import MemoryPool
from tests.support import Harness
from tests.toy_block import ToyBlock

VOCABULARY = FakeVocabulary()
CARD: VocabularyCard = vocabulary_card(VOCABULARY)
LEAD = Presence("lead-1", "lead", "toy", "0", CARD, 4)
ALL = Policy(lookup=False, gate=False)
"""Verify every guess, so that a run does not depend on measured costs."""

LEAVES = Limits().leaves
LIVE_STEP_S = 0.001


STEP_S, ROW_S, DELIVERY_S = 0.01, 0.0003, 0.0005
"""Seconds by a scene's clock: of a decode, more for each of its rows, and of a delivery of messages."""


@dataclass(slots=True)
class Clock:
    """A clock that a test advances, in seconds since the scene began."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass(slots=True)
class Watched(FakeBackend):
    """A backend that counts.

    n_trees: decodes of a tree with several leaves. n_crossings: acceptances of a branch other than the first.
    n_returns: returns of a sequence to an earlier state.
    """

    n_returns: int = 0
    n_trees: int = 0
    n_crossings: int = 0
    clock: Clock = field(default_factory=Clock)

    def decode(self, batch: Batch) -> Logits:
        self.clock.now += STEP_S + ROW_S * len(batch)
        self.n_trees += bool(batch.shared)
        return FakeBackend.decode(self, batch)

    def copy(self, source: int, target: int, start: int, end: int) -> None:
        n_conversations = self.n_seqs // LEAVES
        self.n_crossings += source >= n_conversations > target
        self.n_returns += 0 < start == end
        FakeBackend.copy(self, source, target, start, end)


PADDED = {width: STEP_S + ROW_S * width for width in (1, 4, 8, 16)}  # seconds of padded steps


class Scene:
    """A lead, a pool, and the drafters that a test adds, with their own clock.

    Messages are delivered before every `every`-th step, or, live, by another thread with the real clock.
    """

    can_trim = True

    def __init__(
        self,
        shape: Shape = "linear",
        policy: Policy = ALL,
        *,
        inline: InlineModel | FakeModel | None = None,
        every: int = 1,
        live: bool = False,
        limits: Limits | None = None,
    ) -> None:
        """Make a lead with an inline source: a model, or what a prediction block guesses.

        Where the policy says that a GPU decodes, steps are padded too.
        """
        self.shape: Shape = shape
        self.pool = MemoryPool()
        self.clock = Clock()
        step_s = LIVE_STEP_S if live else 0.0
        self.backend = Watched(TRUTH, clock=self.clock, step_s=step_s, can_trim=self.can_trim)
        self.backend.overlaps = policy.overlaps
        if not self.can_trim:
            policy = replace(policy, leaves=1, again=True)
        bus = self.pool.bus(LEAD)
        clock = time.perf_counter if live else self.clock
        remote = RemoteDrafters(bus, LEAD, max_ahead=16, clock=clock, overlaps=policy.overlaps)
        times = StepTimes(policy.max_rows, shapes=ShapeTimes(PADDED if policy.overlaps else {}))
        model: Backend = self.backend
        if isinstance(inline, FakeModel):
            model = WithBlock(self.backend, ToyBlock(self.backend, inline))
            inline = BlockDraft(model, clock=clock)
        self.proposer = Speculator(policy, remote=remote, inline=inline, times=times, clock=clock)
        bus.start(remote)
        self.harness = Harness(cast(FakeBackend, model), self.proposer, clock=clock, limits=limits)
        self._live = live
        self._every = every

    def add(self, drafter: ScriptedDrafter) -> ScriptedDrafter:
        drafter.start()
        return drafter

    def delivering(self) -> AbstractContextManager[None]:
        """Return a context for the steps, in which a live scene delivers messages."""
        return self.pool.running() if self._live else nullcontext()

    def deliver(self, step: int) -> None:
        """Deliver messages if they are due before this step."""
        self.clock.now += DELIVERY_S
        while not self._live and step % self._every == 0 and self.pool.pump():
            pass


class RecurrentScene(Scene):
    """A Scene whose model cannot trim sequences."""

    can_trim = False


Fault: TypeAlias = Callable[[Scene], Callable[[int], None]]
"""Adds drafters to the scene. Returns what is to be called before each step, with its number."""


def nothing(_: int) -> None:
    pass


def good(scene: Scene) -> Callable[[int], None]:
    scene.add(ScriptedDrafter(scene.pool, CARD, shape=scene.shape))
    return nothing


def two(scene: Scene) -> Callable[[int], None]:
    scene.add(ScriptedDrafter(scene.pool, CARD, "one", shape=scene.shape))
    scene.add(ScriptedDrafter(scene.pool, CARD, "another", error=0.5, shape=scene.shape))
    return nothing


def lying(scene: Scene) -> Callable[[int], None]:
    scene.add(LyingDrafter(scene.pool, CARD, shape=scene.shape))
    return nothing


def stale(scene: Scene) -> Callable[[int], None]:
    scene.add(StaleDrafter(scene.pool, CARD, shape=scene.shape))
    return nothing


def duplicated(scene: Scene) -> Callable[[int], None]:
    scene.pool.tamper = lambda to, data: (data, data) if to == LEAD.id else (data,)
    return good(scene)


def lossy(scene: Scene) -> Callable[[int], None]:
    chance = random.Random(5)
    scene.pool.tamper = lambda to, data: () if to == LEAD.id and chance.random() < 0.4 else (data,)
    return good(scene)


def reordered(scene: Scene) -> Callable[[int], None]:
    good(scene)
    chance = random.Random(6)

    def during(step: int) -> None:
        scene.pool.release(LEAD.id, chance)
        if step % 3:
            scene.pool.hold(LEAD.id)

    return during


def joins_in_the_middle(scene: Scene) -> Callable[[int], None]:
    drafter = ScriptedDrafter(scene.pool, CARD, shape=scene.shape)

    def during(step: int) -> None:
        if step == 20:
            scene.add(drafter)

    return during


def leaves_in_the_middle(scene: Scene) -> Callable[[int], None]:
    drafter = scene.add(ScriptedDrafter(scene.pool, CARD, shape=scene.shape))

    def during(step: int) -> None:
        if step == 15:
            drafter.bus.close()

    return during


def stops_and_continues(scene: Scene) -> Callable[[int], None]:
    good(scene)

    def during(step: int) -> None:
        if step == 8:
            scene.pool.vanish("scripted")
        if step == 20:
            scene.pool.appear("scripted")

    return during


def server_lost_and_back(scene: Scene) -> Callable[[int], None]:
    good(scene)

    def during(step: int) -> None:
        if step == 8:
            scene.pool.disconnect()
        if step == 20:
            scene.pool.connect()

    return during


FAULTS: list[Fault] = [
    good,
    two,
    lying,
    stale,
    duplicated,
    lossy,
    reordered,
    joins_in_the_middle,
    leaves_in_the_middle,
    stops_and_continues,
    server_lost_and_back,
]
