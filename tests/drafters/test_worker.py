"""The drafter over the toy model and a bus in memory: what it computes, what it says, what it survives."""

from __future__ import annotations

import random
from collections.abc import Sequence

from drafters.model import ModelDrafter
from drafters.worker import Worker
from server.llama.fake import IM_END, FakeBackend, FakeModel, FakeVocabulary
from server.sampling.params import SamplingParams
from server.speculation.memory import MemoryPool
from server.speculation.messages import (
    Close,
    Commit,
    Draft,
    Message,
    Open,
    Refuse,
    Want,
    chain_start,
)
from server.speculation.presence import Presence, vocabulary_card

CARD = vocabulary_card(FakeVocabulary())
LEAD = Presence("lead", "lead", "toy", "0", CARD, 4)
OWN = Presence("drafter", "drafter", "toy", "0", CARD, 4)
PROMPT = tuple(b"a prompt of some length, so that there is something to evaluate")
GREEDY = SamplingParams(0.0)
ENDLESS = FakeModel(eog_rate=0.0, sharpness=30.0)


class Lead:
    """The other end: remembers what it is told."""

    def __init__(self) -> None:
        self.heard: list[Message] = []

    def received(self, message: Message) -> None:
        self.heard.append(message)

    def peers(self, present: Sequence[Presence]) -> None:
        pass

    def drafted(self) -> list[int]:
        return [token for message in self.heard if isinstance(message, Draft) for token in message.tokens]


class Scene:
    def __init__(self, backend: FakeBackend | None = None) -> None:
        self.backend = backend or FakeBackend(ENDLESS)
        self.pool = MemoryPool()
        self.lead = Lead()
        self.bus = self.pool.bus(LEAD)
        self.bus.start(self.lead)
        own = self.pool.bus(OWN)
        self.worker = Worker(own, OWN, ModelDrafter(self.backend))
        own.start(self.worker)
        self.settle()

    def send(self, *messages: Message) -> None:
        for message in messages:
            self.bus.send("drafter", message)
        self.settle()

    def settle(self) -> None:
        """Until nobody has anything to do."""
        for _ in range(500):
            delivered = self.pool.pump()
            n = len(self.backend.widths)
            self.worker.turn(wait=False)
            if not delivered and len(self.backend.widths) == n:
                return
        raise AssertionError("never at rest")


def open_(tokens: tuple[int, ...] = PROMPT, session: int = 1, max_ahead: int = 6, epoch: int = 0) -> Open:
    return Open("lead", session, epoch, chain_start(tokens), max_ahead, GREEDY, tokens)


def greedy(n: int, prompt: tuple[int, ...] = PROMPT, model: FakeModel = ENDLESS) -> list[int]:
    """What the toy says after the prompt."""
    scene = Scene(FakeBackend(model))
    scene.send(open_(prompt, max_ahead=n))
    return scene.lead.drafted()


def test_it_catches_up_in_one_decode_and_drafts_up_to_max_ahead():
    scene = Scene()
    scene.send(open_())
    assert scene.backend.widths == [len(PROMPT), 1, 1, 1, 1, 1]
    assert len(scene.lead.drafted()) == 6
    drafts = [message for message in scene.lead.heard if isinstance(message, Draft)]
    assert drafts[0].base == len(PROMPT)
    assert len(drafts[0].tokens) == 1, "the first guess goes out at once"


def test_it_goes_on_when_its_guesses_are_confirmed():
    scene = Scene()
    scene.send(open_())
    guesses = scene.lead.drafted()
    before = len(scene.backend.widths)
    scene.send(Commit(1, 0, len(PROMPT), 1, tuple(guesses[:3])))
    assert scene.backend.widths[before:] == [1, 1, 1]
    assert scene.lead.drafted() == greedy(9)


def test_a_divergence_evaluates_only_the_gap():
    scene = Scene()
    scene.send(open_())
    guesses = scene.lead.drafted()
    wrong = (guesses[1] + 1) % 256
    before = len(scene.backend.widths)
    scene.send(Commit(1, 0, len(PROMPT), 1, (guesses[0], wrong, 65)))
    assert scene.backend.widths[before:] == [2, 1, 1, 1, 1, 1]
    assert scene.lead.drafted()[6:] == greedy(6, (*PROMPT, guesses[0], wrong, 65))


def test_the_cache_is_kept_across_turns():
    scene = Scene()
    scene.send(open_())
    scene.send(Close(1, 0, True))
    before = len(scene.backend.widths)
    scene.send(open_((*PROMPT, 1, 2, 3), session=2))
    assert scene.backend.widths[before] <= 4
    assert scene.lead.drafted()[-6:] == greedy(6, (*PROMPT, 1, 2, 3))


def test_it_stops_at_the_end_of_a_text_and_at_the_end_of_the_context():
    ending = FakeModel(eog_rate=1.0)
    assert greedy(9, model=ending) == [IM_END]
    scene = Scene(FakeBackend(ENDLESS, n_ctx=len(PROMPT) + 3))
    scene.send(open_(max_ahead=50))
    assert len(scene.lead.drafted()) == 3


def test_an_unlikely_path_is_not_followed():
    flat = FakeModel(eog_rate=0.0, sharpness=0.1)
    assert 0 < len(greedy(50, model=flat)) < 5


def test_sessions_share_decodes():
    scene = Scene()
    scene.send(*(open_((*PROMPT[:20], i), session=i) for i in range(1, 4)))
    assert 3 in scene.backend.widths
    for i in range(1, 4):
        said = [t for m in scene.lead.heard if isinstance(m, Draft) and m.session == i for t in m.tokens]
        assert said == greedy(6, (*PROMPT[:20], i))


def test_more_sessions_than_sequences_wait_for_their_turn():
    scene = Scene(FakeBackend(ENDLESS, n_seqs=1))
    scene.send(open_(session=1), open_((9, 8, 7), session=2))
    assert {m.session for m in scene.lead.heard if isinstance(m, Draft)} == {1}
    scene.send(Close(1, 0, False))
    assert {m.session for m in scene.lead.heard if isinstance(m, Draft)} == {1, 2}


def test_a_full_cache_gives_up_closed_sessions_first():
    scene = Scene(FakeBackend(ENDLESS, n_cells=100))
    scene.send(open_())
    scene.send(Close(1, 0, True))
    scene.send(open_(PROMPT[::-1], session=2))
    assert len(scene.lead.drafted()) == 12


def test_a_gap_makes_it_ask_for_everything():
    scene = Scene()
    scene.send(open_(), Commit(1, 0, len(PROMPT) + 5, 1, (1,)))
    assert [m for m in scene.lead.heard if isinstance(m, Want)] == [Want("drafter", 1, 0)]
    scene.send(open_((*PROMPT, 1, 2)))
    assert scene.lead.drafted()[-6:] == greedy(6, (*PROMPT, 1, 2))


def test_messages_of_an_older_epoch_are_ignored():
    scene = Scene()
    scene.send(open_(epoch=2))
    said = len(scene.lead.heard)
    scene.send(Commit(1, 1, len(PROMPT), 1, (1,)), Close(1, 1, False))
    assert len(scene.lead.heard) == said
    assert scene.worker.n_sessions == 1


def test_a_refusal_ends_work_for_that_lead():
    scene = Scene()
    scene.send(Refuse("lead", "vocabulary sizes differ"), open_())
    assert scene.worker.n_sessions == 0
    assert scene.worker.leads == []


def test_a_lead_that_leaves_takes_its_sessions_along():
    scene = Scene()
    scene.send(open_())
    scene.bus.close()
    scene.settle()
    assert scene.worker.n_sessions == 0


def test_a_failing_model_is_given_up_on_after_a_few_attempts():
    scene = Scene(FakeBackend(ENDLESS, n_batch=64))
    scene.backend.n_ctx = 10_000
    scene.backend.n_seqs = 0  # every decode fails now
    scene.send(open_())
    assert scene.lead.drafted() == []
    assert scene.worker.n_sessions == 1


def test_tokens_outside_the_vocabulary_are_not_evaluated():
    scene = Scene()
    scene.send(open_((1, 2, 5000)))
    assert scene.lead.drafted() == []
    assert scene.backend.widths == []


def test_no_message_in_any_order_breaks_it():
    chance = random.Random(11)
    scene = Scene()
    tokens = [*range(60, 80), -1, 258, 259, 10_000]

    def some() -> tuple[int, ...]:
        return tuple(chance.choice(tokens) for _ in range(chance.randrange(6)))

    for _ in range(400):
        session, epoch = chance.randrange(3), chance.randrange(3)
        base = chance.randrange(12)
        message = chance.choice(
            [
                Open("lead", session, epoch, base, 4, SamplingParams(float("nan")), some()),
                Open("lead", session, epoch, base, 4, GREEDY, some()),
                Commit(session, epoch, base, 7, some()),
                Close(session, epoch, chance.random() < 0.5),
                Draft("x", session, epoch, base, 1, 1, (-1,), (5,), b"\x01"),
                Want("x", session, epoch),
            ]
        )
        scene.bus.send("drafter", message)
        scene.pool.pump()
        scene.worker.turn(wait=False)
    for session in range(3):
        scene.send(Close(session, 2, True))
    scene.send(open_(session=9, epoch=3))
    assert scene.lead.drafted()[-6:] == greedy(6)
