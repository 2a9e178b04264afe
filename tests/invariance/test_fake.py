"""The text does not depend on drafters: every fault, on the toy model, without Redis, in a fixed order.

Each case also asserts that drafts were accepted and rejected: with speculation parked it would show nothing.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest

from server.engine.events import Committed
from server.engine.request import GenerationRequest
from server.llama.fake import FakeBackend, FakeModel, FakeVocabulary
from server.speculation.memory import MemoryPool
from server.speculation.policy import Policy
from server.speculation.presence import Presence, VocabularyCard, vocabulary_card
from server.speculation.remote import RemoteDrafters
from server.speculation.speculator import Speculator
from tests.invariance.scripted import LyingDrafter, ScriptedDrafter, StaleDrafter
from tests.support import PROMPT, Harness, Outcome, request

CARD: VocabularyCard = vocabulary_card(FakeVocabulary())
LEAD = Presence("lead-1", "lead", "toy", "0", CARD, 4)


class Scene:
    """A lead over the toy model, a pool, and the drafters of one case."""

    def __init__(self) -> None:
        self.pool = MemoryPool()
        bus = self.pool.bus(LEAD)
        remote = RemoteDrafters(bus, LEAD, max_ahead=16)
        self.proposer = Speculator(Policy(lookup=False, gate=False, waits=False), remote=remote)
        bus.start(remote)
        self.harness = Harness(FakeBackend(FakeModel()), self.proposer)

    def add(self, drafter: ScriptedDrafter) -> ScriptedDrafter:
        drafter.start()
        return drafter

    def play(self, requests: Sequence[GenerationRequest], during: Callable[[int], None]) -> list[Outcome]:
        """Run to the end; `during(step)` happens between steps, after everything queued was delivered."""
        ids = self.harness.submit(*requests)
        for step in range(10_000):
            during(step)
            while self.pool.pump():
                pass
            if not self.harness.engine.step():
                break
        self.harness.engine.check()
        return [self.harness.outcomes[id] for id in ids]


Case = Callable[[Scene], Callable[[int], None]]


def _nothing(_: int) -> None:
    pass


def good(scene: Scene) -> Callable[[int], None]:
    scene.add(ScriptedDrafter(scene.pool, CARD))
    return _nothing


def two(scene: Scene) -> Callable[[int], None]:
    scene.add(ScriptedDrafter(scene.pool, CARD, "one"))
    scene.add(ScriptedDrafter(scene.pool, CARD, "another", error=0.5))
    return _nothing


def lying(scene: Scene) -> Callable[[int], None]:
    scene.add(LyingDrafter(scene.pool, CARD))
    return _nothing


def stale(scene: Scene) -> Callable[[int], None]:
    scene.add(StaleDrafter(scene.pool, CARD))
    return _nothing


def duplicated(scene: Scene) -> Callable[[int], None]:
    scene.add(ScriptedDrafter(scene.pool, CARD))
    scene.pool.tamper = lambda to, data: (data, data) if to == LEAD.id else (data,)
    return _nothing


def lossy(scene: Scene) -> Callable[[int], None]:
    scene.add(ScriptedDrafter(scene.pool, CARD))
    chance = random.Random(5)
    scene.pool.tamper = lambda to, data: () if to == LEAD.id and chance.random() < 0.4 else (data,)
    return _nothing


def reordered(scene: Scene) -> Callable[[int], None]:
    scene.add(ScriptedDrafter(scene.pool, CARD))
    chance = random.Random(6)

    def during(step: int) -> None:
        scene.pool.release(LEAD.id, chance)
        if step % 3:
            scene.pool.hold(LEAD.id)

    return during


def joins_in_the_middle(scene: Scene) -> Callable[[int], None]:
    drafter = ScriptedDrafter(scene.pool, CARD)

    def during(step: int) -> None:
        if step == 20:
            scene.add(drafter)

    return during


def leaves_in_the_middle(scene: Scene) -> Callable[[int], None]:
    drafter = scene.add(ScriptedDrafter(scene.pool, CARD))

    def during(step: int) -> None:
        if step == 15:
            drafter.bus.close()

    return during


def stops_and_continues(scene: Scene) -> Callable[[int], None]:
    scene.add(ScriptedDrafter(scene.pool, CARD))

    def during(step: int) -> None:
        if step == 8:
            scene.pool.vanish("scripted")
        if step == 20:
            scene.pool.appear("scripted")

    return during


def server_lost_and_back(scene: Scene) -> Callable[[int], None]:
    scene.add(ScriptedDrafter(scene.pool, CARD))

    def during(step: int) -> None:
        if step == 8:
            scene.pool.disconnect()
        if step == 20:
            scene.pool.connect()

    return during


CASES: list[Case] = [
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


def observable(outcome: Outcome) -> tuple[object, ...]:
    """What a client sees of a reply: tokens, finish reason, usage."""
    stats = outcome.finished.stats
    usage = (stats.n_prompt, stats.n_cached, stats.n_predicted)
    return outcome.tokens, outcome.finished.reason, usage


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("n_sessions", [1, 4])
def test_no_drafter_changes_anything_a_client_sees(case: Case, temperature: float, n_sessions: int):
    asks = [
        request((*PROMPT, 97 + i), temperature=temperature, seed=40 + i, max_tokens=140)
        for i in range(n_sessions)
    ]
    alone = Harness(FakeBackend(FakeModel()))
    expected = [observable(outcome) for outcome in alone.run(*asks)]
    scene = Scene()
    outcomes = scene.play(asks, case(scene))
    assert [observable(outcome) for outcome in outcomes] == expected
    stats = [outcome.finished.stats for outcome in outcomes]
    assert sum(s.n_accepted for s in stats) > 0
    assert sum(s.n_drafted - s.n_accepted for s in stats) > 0

    # The next turn of each conversation, from the same caches.
    again = [
        request((*ask.prompt, *o.tokens, 10), max_tokens=20) for ask, o in zip(asks, outcomes, strict=True)
    ]
    expected = [observable(outcome) for outcome in alone.run(*again)]
    assert [observable(outcome) for outcome in scene.play(again, _nothing)] == expected


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_stop_token_inside_an_accepted_run_ends_the_reply_there(temperature: float):
    ended_by_draft = 0
    for seed in range(12):
        ask = request((*PROMPT, seed), temperature=temperature, seed=seed, max_tokens=600)
        [expected] = Harness().run(ask)
        scene = Scene()
        [outcome] = scene.play([ask], good(scene))
        assert observable(outcome) == observable(expected)
        last = outcome.events[-2]
        assert isinstance(last, Committed)
        if outcome.finished.reason == "stop" and last.sources[-1] == "scripted":
            ended_by_draft += last.n_drafted > len(last.tokens)
    assert ended_by_draft > 0


def test_a_drafter_of_another_vocabulary_is_refused_with_the_reason():
    scene = Scene()
    card = VocabularyCard(CARD.size, CARD.bos, CARD.eos, tuple(block ^ 1 for block in CARD.blocks))
    drafter = scene.add(ScriptedDrafter(scene.pool, card))
    [outcome] = scene.play([request()], _nothing)
    assert outcome.finished.stats.n_drafted == 0
    assert drafter.refused == "token texts differ between ids 0 and 1023"
    [record] = scene.proposer.drafters()
    assert record.refusal == drafter.refused


def test_a_liar_is_counted_and_an_honest_drafter_named():
    scene = Scene()
    lying(scene)
    [outcome] = scene.play([request()], _nothing)
    [record] = scene.proposer.drafters()
    assert record.counts["invalid"] > 0
    assert record.counts["stale"] > 0
    assert record.counts["accepted"] == outcome.finished.stats.drafters["liar"].accepted
