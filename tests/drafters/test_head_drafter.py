"""A head far from its target: each token is evaluated with the right row, whatever is lost or late."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from drafters.head_drafter import HeadDrafter
from drafters.worker import Worker
from server.engine.request import GenerationRequest
from server.engine.scheduler import Limits
from server.llama.backend import RowsCard
from server.llama.with_rows import KEPT_ROWS, WithRows
from server.speculation.policy import Policy
from server.speculation.sources.remote import RemoteDrafters
from server.speculation.speculator import Speculator
from server.speculation.wire.messages import Rows, decode
from server.speculation.wire.presence import Presence, vocabulary_card
from tests.fake_backend import FakeBackend, FakeModel, FakeVocabulary
from tests.memory_bus import MemoryBus, MemoryPool
from tests.support import PROMPT, Harness, Outcome, request
from tests.toy_block import PARTS, ToyHead, ToyRows

MODEL = FakeModel(seed=3, eog_rate=0.0)
CARD = RowsCard(PARTS, (1,))
LEAD = Presence("lead", "lead", "toy", "0", vocabulary_card(FakeVocabulary()), 4, rows=CARD)
DRAFT_MAX = 4
TURNS = 8  # of the drafter between two steps: a path, and prompts in parts


class Scene:
    """A lead that verifies every guess, and a head that joins when it is told to."""

    def __init__(self, prompt_rows: int = 16) -> None:
        self.pool = MemoryPool()
        self.backend = FakeBackend(MODEL)
        self.rows = ToyRows(self.backend)
        self.model = WithRows(self.backend, lambda kind: self.rows)
        bus = self.pool.bus(LEAD)
        self.remote = RemoteDrafters(bus, LEAD, max_ahead=DRAFT_MAX, target=self.model)
        bus.start(self.remote)
        proposer = Speculator(Policy(leaves=2, lookup=False, gate=False), remote=self.remote)
        limits = Limits(n_batch=self.backend.n_batch, n_chunk=prompt_rows, draft_max=DRAFT_MAX, leaves=2)
        self.lead = Harness(self.model, proposer, limits=limits)  # pyright: ignore[reportArgumentType]
        self.head = ToyHead(MODEL)
        self.worker: Worker | None = None

    def join(self, card: RowsCard = CARD) -> MemoryBus:
        own = Presence("head", "drafter", "toy", "0", LEAD.vocabulary, 4, kernel="elsewhere", rows=card)
        bus = self.pool.bus(own)
        self.worker = Worker(bus, own, HeadDrafter(self.head))
        bus.start(self.worker)
        self.deliver()
        return bus

    def deliver(self) -> None:
        for _ in range(TURNS):
            self.pool.pump()
            if self.worker is not None:
                self.worker.turn(wait=False)
        self.pool.pump()

    def step(self, n: int) -> None:
        for _ in range(n):
            self.deliver()
            self.lead.engine.step()

    def run(self, *requests: GenerationRequest) -> list[Outcome]:
        ids = self.lead.submit(*requests)
        while not all(self.lead.outcomes[id].ended for id in ids):
            self.step(1)
        return [self.lead.outcomes[id] for id in ids]


def counts(outcomes: Sequence[Outcome]) -> tuple[int, int]:
    found = [count for one in outcomes for count in one.finished.stats.drafters.values()]
    return sum(one.accepted for one in found), sum(one.drafted for one in found)


def plain(*requests: GenerationRequest) -> list[tuple[int, ...]]:
    return [one.tokens for one in Harness(FakeBackend(MODEL)).run(*requests)]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_every_first_guess_is_right(temperature: float):
    asked = [request((*PROMPT, *b"abc"[:n]), temperature=temperature, seed=n) for n in range(3)]
    scene = Scene()
    scene.join()
    outcomes = scene.run(*asked)
    assert [one.tokens for one in outcomes] == plain(*asked)
    accepted, _ = counts(outcomes)
    n_tokens, n_steps = (sum(get(one) for one in outcomes) for get in (_n_tokens, _n_steps))
    assert accepted > 0.7 * n_tokens  # the path is always right: second choices are not
    assert n_tokens > 3.5 * n_steps


def _n_tokens(outcome: Outcome) -> int:
    return len(outcome.tokens)


def _n_steps(outcome: Outcome) -> int:
    return outcome.finished.stats.n_steps


def test_long_prompt_sends_latest_rows():
    asked = request(PROMPT * 12)
    assert len(asked.prompt) > 2 * KEPT_ROWS
    scene = Scene(prompt_rows=64)
    scene.join()
    [outcome] = scene.run(asked)
    assert [outcome.tokens] == plain(asked)
    assert counts([outcome])[0] > 0.7 * _n_tokens(outcome)
    assert KEPT_ROWS < scene.head.n_rows < KEPT_ROWS + 6 * _n_tokens(outcome)


def test_next_turn_continues_the_cells():
    scene = Scene()
    scene.join()
    [first] = scene.run(request(max_tokens=40))
    n_before = scene.head.n_rows
    [second] = scene.run(request((*PROMPT, *first.tokens, *b"and"), max_tokens=1))
    assert scene.head.n_rows - n_before < 20
    assert len(second.tokens) == 1


def test_head_joins_midway_and_leaves():
    asked = request(max_tokens=200)
    scene = Scene()
    [id] = scene.lead.submit(asked)
    scene.step(20)
    assert scene.rows.readers == 0
    assert scene.model.decode == scene.backend.decode, "nobody listens"
    bus = scene.join()
    scene.step(20)
    assert scene.rows.readers == 1
    n_tokens = len(scene.lead.outcomes[id].tokens)
    assert n_tokens > 60
    bus.close()
    scene.worker = None
    scene.step(20)
    assert scene.rows.readers == 0
    assert len(scene.lead.outcomes[id].tokens) <= n_tokens + 20 + DRAFT_MAX
    while scene.lead.engine.step():
        pass
    assert [scene.lead.outcomes[id].tokens] == plain(asked)


def test_lost_rows_cost_guesses_only():
    asked = request(max_tokens=200)
    scene = Scene()
    scene.join()
    n_seen = [0]

    def lose(to: str, data: bytes) -> Sequence[bytes]:
        n_seen[0] += isinstance(decode(data), Rows)
        return () if isinstance(decode(data), Rows) and n_seen[0] % 7 == 3 else (data,)

    scene.pool.tamper = lose
    [outcome] = scene.run(asked)
    assert [outcome.tokens] == plain(asked)
    assert n_seen[0] > 10
    assert counts([outcome])[0] > 0.5 * _n_tokens(outcome)


@pytest.mark.parametrize(
    ("card", "reason"),
    [
        (RowsCard(PARTS + 1, (1,)), "its head is for targets of width 9, and this one has 8"),
        (RowsCard(PARTS, (1, 5)), "its head reads layer 5, and this lead can send 1 layers"),
    ],
)
def test_head_of_another_target_is_refused(card: RowsCard, reason: str):
    scene = Scene()
    scene.join(card)
    scene.step(1)
    [record] = scene.remote.drafters()
    assert record.refusal == reason
    assert scene.rows.readers == 0
