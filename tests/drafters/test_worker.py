"""The drafter over the toy model and a bus in memory: what it computes, what it says, what it survives."""

from __future__ import annotations

import math
import random
import threading
from collections.abc import Sequence

import numpy as np
import pytest

from drafters.model import SHARED_ROWS, ModelDrafter
from drafters.session import GREEDY
from drafters.worker import MAX_FAILURES, PUBLISH_S, WANT_S, Worker
from server.errors import BackendError
from server.llama.backend import Batch, Logits
from server.llama.fake import IM_END, FakeBackend, FakeModel, FakeVocabulary
from server.sampling.draw import draw, probability
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
    chain_next,
    chain_start,
)
from server.speculation.presence import Presence, vocabulary_card

CARD = vocabulary_card(FakeVocabulary())
LEAD = Presence("lead", "lead", "toy", "0", CARD, 4)
OWN = Presence("drafter", "drafter", "toy", "0", CARD, 4)
PROMPT = tuple(b"a prompt of some length, so that there is something to evaluate")
ENDLESS = FakeModel(eog_rate=0.0, sharpness=30.0)


class Lead:
    """The other end: remembers what it is told."""

    def __init__(self) -> None:
        self.heard: list[Message] = []

    def received(self, message: Message) -> None:
        self.heard.append(message)

    def peers(self, present: Sequence[Presence]) -> None:
        pass

    def drafts(self) -> list[Draft]:
        return [message for message in self.heard if isinstance(message, Draft)]

    def wants(self) -> list[Want]:
        return [message for message in self.heard if isinstance(message, Want)]


class Scene:
    """A lead and a worker on one pool. The clock stands still, unless a test moves it."""

    def __init__(self, backend: FakeBackend | None = None) -> None:
        self.backend = backend or FakeBackend(ENDLESS)
        self.now = 0.0
        self.pool = MemoryPool()
        self.lead = Lead()
        self.bus = self.pool.bus(LEAD)
        self.bus.start(self.lead)
        self.drafter_bus = self.pool.bus(OWN)
        self.worker = Worker(self.drafter_bus, OWN, ModelDrafter(self.backend), clock=lambda: self.now)
        self.drafter_bus.start(self.worker)
        self.settle()

    def send(self, *messages: Message) -> None:
        for message in messages:
            self.bus.send("drafter", message)
        self.settle()

    def settle(self) -> None:
        """Until nobody has anything to do."""
        for _ in range(500):
            n = len(self.backend.widths)
            delivered = self.pool.pump()
            self.worker.turn(wait=False)
            if not delivered + self.pool.pump() and len(self.backend.widths) == n:
                return
        raise AssertionError("never at rest")

    def drafted(self, session: int = 1) -> list[int]:
        return [t for m in self.lead.drafts() if m.session == session for t in m.tokens]


def open_(
    tokens: Sequence[int] = PROMPT,
    session: int = 1,
    max_ahead: int = 6,
    epoch: int = 0,
    sampling: SamplingParams = GREEDY,
) -> Open:
    return Open("lead", session, epoch, chain_start(tokens), max_ahead, sampling, tuple(tokens))


def commit(*tokens: int, session: int = 1, epoch: int = 0, prompt: Sequence[int] = PROMPT) -> Commit:
    """These tokens are committed after the prompt."""
    chain = chain_start(prompt)
    for token in tokens:
        chain = chain_next(chain, token)
    return Commit(session, epoch, len(prompt), chain, tokens)


def told(n: int, prompt: Sequence[int] = PROMPT, model: FakeModel = ENDLESS) -> list[int]:
    """What the toy says after the prompt, greedily, computed without a drafter."""
    backend, tokens = FakeBackend(model), list(prompt)
    for _ in range(n):
        backend.trim(0, 0)
        for start in range(0, len(tokens), backend.n_batch):
            batch = Batch()
            batch.extend(0, start, tokens[start : start + backend.n_batch], 1)
            logits = backend.decode(batch)
        tokens.append(int(logits[0].argmax()))  # pyright: ignore[reportPossiblyUnboundVariable]
    return tokens[len(prompt) :]


# -- what is computed


def test_it_catches_up_in_one_decode_and_drafts_up_to_max_ahead():
    scene = Scene()
    scene.send(open_())
    assert scene.backend.widths == [len(PROMPT), 1, 1, 1, 1, 1]
    assert scene.drafted() == told(6)


def test_it_goes_on_when_its_guesses_are_confirmed():
    scene = Scene()
    scene.send(open_())
    before = len(scene.backend.widths)
    scene.send(commit(*scene.drafted()[:3]))
    assert scene.backend.widths[before:] == [1, 1, 1]
    assert scene.drafted() == told(9)


def test_a_divergence_evaluates_only_the_gap():
    scene = Scene()
    scene.send(open_())
    guesses = scene.drafted()
    wrong = (guesses[1] + 1) % 256
    before = len(scene.backend.widths)
    scene.send(commit(guesses[0], wrong, 65))
    assert scene.backend.widths[before:] == [2, 1, 1, 1, 1, 1]
    assert scene.drafted()[6:] == told(6, (*PROMPT, guesses[0], wrong, 65))


def test_a_lead_that_is_ahead_is_caught_up_with_in_one_decode():
    scene = Scene()
    scene.send(open_())
    guesses = scene.drafted()
    before = len(scene.backend.widths)
    scene.send(commit(*guesses, *b"and more"))
    assert scene.backend.widths[before] == 1 + len(b"and more")  # its own last guess was not evaluated


def test_the_cache_is_kept_across_turns():
    scene = Scene()
    scene.send(open_())
    guesses = scene.drafted()
    scene.send(commit(*guesses), Close(1, 0, True))
    later = (*PROMPT, *guesses, *b"next turn")
    before = len(scene.backend.widths)
    scene.send(open_(later, session=2))
    assert scene.backend.widths[before] <= 1 + len(b"next turn")
    assert scene.drafted(2) == told(6, later)


def test_the_leads_sampling_and_noise_are_mirrored():
    model = FakeModel(eog_rate=0.0, sharpness=1.0)
    sampling = SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, seed=5)
    scene = Scene(FakeBackend(model))
    scene.send(open_(sampling=sampling))
    batch = Batch()
    batch.extend(0, 0, PROMPT, 1)
    row = FakeBackend(model).decode(batch)[0]
    expected = draw(row, sampling, len(PROMPT))
    assert expected != int(row.argmax())
    first = scene.lead.drafts()[0]
    assert first.tokens[0] == expected
    assert first.confidences[0] == round(255 * probability(row, expected))


def test_it_stops_at_the_end_of_a_text():
    scene = Scene(FakeBackend(FakeModel(eog_rate=1.0)))
    scene.send(open_())
    assert scene.drafted() == [IM_END]


def test_it_stops_at_the_end_of_the_context_and_says_so_once(caplog: pytest.LogCaptureFixture):
    scene = Scene(FakeBackend(ENDLESS, n_ctx=len(PROMPT) + 3))
    with caplog.at_level("INFO", "duo.drafter"):
        scene.send(open_(max_ahead=50))
        scene.send(commit(*scene.drafted()[:1]))
    assert len(scene.drafted()) == 3
    assert [
        record.message for record in caplog.records if "end of this model's context" in record.message
    ] == [
        f"not drafting for a session of lead: it has reached the end of this model's context of "
        f"{len(PROMPT) + 3} tokens"
    ]


def test_an_unlikely_path_is_not_followed():
    scene = Scene(FakeBackend(FakeModel(eog_rate=0.0, sharpness=0.1)))
    scene.send(open_(max_ahead=50))
    assert 0 < len(scene.drafted()) < 5


def test_a_model_that_computes_nonsense_is_survived():
    class Broken(FakeBackend):
        def decode(self, batch: Batch) -> Logits:
            return FakeBackend.decode(self, batch) * np.float32(math.nan)

    scene = Scene(Broken(ENDLESS))
    scene.send(open_())
    assert [draft.confidences for draft in scene.lead.drafts()] == [b"\0"]


# -- several sessions


def test_sessions_share_decodes():
    scene = Scene()
    prompts = {i: (*PROMPT[:20], i) for i in range(1, 4)}
    scene.send(*(open_(prompt, session=i) for i, prompt in prompts.items()))
    assert scene.backend.widths[0] == 3 * 21 - 0 or 3 in scene.backend.widths
    for i, prompt in prompts.items():
        assert scene.drafted(i) == told(6, prompt)


def test_a_long_prompt_does_not_hold_up_those_who_draft():
    scene = Scene(FakeBackend(ENDLESS, n_batch=512))
    scene.bus.send("drafter", open_(max_ahead=4))
    scene.bus.send("drafter", open_(PROMPT * 8, session=2, max_ahead=1))
    scene.settle()
    assert max(scene.backend.widths[1:4]) <= SHARED_ROWS
    assert (len(scene.drafted(1)), len(scene.drafted(2))) == (4, 1)


def test_more_sessions_than_sequences_wait_for_their_turn():
    scene = Scene(FakeBackend(ENDLESS, n_seqs=1))
    scene.send(open_(session=1), open_((9, 8, 7), session=2))
    assert scene.drafted(1)
    assert not scene.drafted(2)
    scene.send(Close(1, 0, False))
    assert scene.drafted(2) == told(6, (9, 8, 7))


def test_a_full_cache_gives_up_closed_sessions_first():
    scene = Scene(FakeBackend(ENDLESS, n_cells=100))
    scene.send(open_())
    scene.send(Close(1, 0, True))
    scene.send(open_(PROMPT[::-1], session=2))
    assert scene.drafted(2) == told(6, PROMPT[::-1])


def test_sessions_that_outgrow_the_cache_together_do_not_block_each_other():
    scene = Scene(FakeBackend(ENDLESS, n_cells=160))
    other = PROMPT[::-1]
    scene.send(open_(max_ahead=40), open_(other, session=2, max_ahead=40))
    first, second = scene.drafted(1), scene.drafted(2)
    assert sorted([len(first) == 40, len(second) == 40]) == [False, True]
    done = 1 if len(first) == 40 else 2
    scene.send(Close(done, 0, True))
    assert scene.drafted(3 - done) == told(40, other if done == 1 else PROMPT)


def test_it_sleeps_while_those_who_wait_cannot_be_served():
    scene = Scene(FakeBackend(ENDLESS, n_seqs=1))
    scene.send(open_(session=1), open_((9, 8, 7), session=2))
    threading.Timer(0.05, scene.worker.stop).start()
    assert not scene.worker.turn(), "returned without anything to do"


def test_a_model_that_cannot_forget_begins_anew():
    scene = Scene(FakeBackend(ENDLESS, can_trim=False))
    scene.send(open_())
    scene.send(commit(65, 66))
    assert scene.drafted()[-6:] == told(6, (*PROMPT, 65, 66))
    scene.send(Close(1, 0, True), open_((*PROMPT, 67), session=2))
    assert scene.drafted(2) == told(6, (*PROMPT, 67))


# -- what is said


def test_the_first_guess_goes_out_at_once_and_others_gather():
    scene = Scene()
    scene.send(open_())
    assert [len(draft.tokens) for draft in scene.lead.drafts()] == [1, 5]
    first, second = scene.lead.drafts()
    assert second.base == first.base + 1 == len(PROMPT) + 1
    assert second.chain == chain_next(first.chain, first.tokens[0])
    assert second.parents == (-1, 0, 1, 2, 3)


def test_guesses_go_out_every_few_milliseconds():
    scene = Scene()
    scene.bus.send("drafter", open_())
    scene.pool.pump()
    for _ in range(6):
        scene.now += PUBLISH_S / 2
        scene.worker.turn(wait=False)
    scene.settle()
    assert [len(draft.tokens) for draft in scene.lead.drafts()] == [1, 2, 2, 1]


def test_a_gap_makes_it_ask_for_everything():
    scene = Scene()
    scene.send(open_(), Commit(1, 0, len(PROMPT) + 5, 1, (1,)), Commit(1, 0, len(PROMPT) + 6, 1, (1,)))
    assert scene.lead.wants() == [Want("drafter", 1, 0)]
    scene.send(open_((*PROMPT, 1, 2)))
    assert scene.drafted()[-6:] == told(6, (*PROMPT, 1, 2))


def test_a_session_whose_open_was_lost_is_asked_for_until_it_comes():
    scene = Scene()
    scene.send(commit(1))
    scene.send(commit(1, 2))
    assert scene.lead.wants() == [Want("drafter", 1, 0)]
    scene.now += WANT_S
    scene.send(commit(1, 2, 3))
    assert len(scene.lead.wants()) == 2
    scene.send(open_((*PROMPT, 1, 2, 3)))
    assert scene.drafted() == told(6, (*PROMPT, 1, 2, 3))


def test_the_time_per_guess_is_announced():
    scene = Scene(FakeBackend(ENDLESS, step_s=0.001))
    scene.send(open_())
    assert scene.drafter_bus.presence.td_us >= 1000
    assert scene.lead.drafts()[-1].td_us >= 1000


def test_messages_of_an_older_epoch_are_ignored():
    scene = Scene()
    scene.send(open_(epoch=2))
    heard = len(scene.lead.heard)
    scene.send(commit(1, epoch=1), Close(1, 1, False), open_((1, 2), epoch=1))
    assert len(scene.lead.heard) == heard
    assert scene.worker.n_sessions == 1


def test_a_refusal_ends_work_for_that_lead(caplog: pytest.LogCaptureFixture):
    scene = Scene()
    scene.send(open_())
    heard = len(scene.lead.heard)
    refusal = Refuse("lead", "vocabulary sizes differ")
    scene.send(refusal, refusal, open_((1, 2), session=2), commit(1))
    assert (scene.worker.n_sessions, scene.worker.leads) == (0, [])
    assert len(scene.lead.heard) == heard
    assert caplog.messages.count("lead lead refuses this drafter: vocabulary sizes differ") == 1


def test_a_lead_that_leaves_takes_its_sessions_along_and_may_come_back():
    scene = Scene()
    scene.send(open_())
    scene.pool.disconnect()
    scene.settle()
    assert (scene.worker.n_sessions, scene.worker.leads) == (0, [])
    scene.pool.connect()
    scene.settle()
    before = len(scene.backend.widths)
    scene.send(open_((*PROMPT, 1)))
    assert scene.backend.widths[before] <= 2, "what was computed is kept"


# -- what goes wrong


class Faulty(FakeBackend):
    """Fails for any batch with this token in it, as often as it has lives."""

    poison, lives = ord("!"), 1000

    def decode(self, batch: Batch) -> Logits:
        if self.poison in batch.tokens and self.lives:
            self.lives -= 1
            raise BackendError("a poisoned row")
        return FakeBackend.decode(self, batch)


def test_a_session_that_makes_the_model_fail_does_not_take_others_along():
    backend = Faulty(ENDLESS)
    scene = Scene(backend)
    scene.send(open_(b"wrong!", session=2), open_(b"right"))
    assert scene.drafted(1) == told(6, b"right")
    assert scene.drafted(2) == []
    assert 1000 - backend.lives == MAX_FAILURES


def test_a_passing_failure_is_forgotten():
    backend = Faulty(ENDLESS)
    scene = Scene(backend)
    for i in range(3):
        backend.lives = MAX_FAILURES - 1
        prompt = b"wrong!" * (i + 1)
        scene.send(open_(prompt, session=i))
        assert scene.drafted(i) == told(6, prompt)
        assert backend.lives == 0


@pytest.mark.parametrize("token", [-1, 259, 1 << 30])
def test_tokens_outside_the_vocabulary_are_not_evaluated(token: int):
    scene = Scene()
    scene.send(open_((1, 2, token)), open_((1, 2, 3), session=2))
    assert (scene.drafted(1), scene.drafted(2)) == ([], told(6, (1, 2, 3)))
    scene.send(commit(3, token, session=2, prompt=(1, 2, 3)))
    assert len(scene.drafted(2)) == 6


@pytest.mark.parametrize("seed", range(8))
def test_no_message_in_any_order_breaks_it(seed: int):
    """Nor makes it mix up its sequences: a session told plainly afterwards is drafted for as ever."""
    chance = random.Random(seed)
    scene = Scene(FakeBackend(ENDLESS, n_cells=60, n_seqs=2, n_batch=8))
    tokens = [*range(60, 64)] * 4 + [-1, 258, 259, 10_000]
    wild = SamplingParams(float("nan"), -3, float("inf"), 7.0, 1)

    def some() -> tuple[int, ...]:
        return tuple(chance.choice(tokens) for _ in range(chance.randrange(8)))

    def message() -> Message:
        session, epoch, run = chance.randrange(4), chance.randrange(3), some()
        return chance.choice(
            [
                Open("lead", session, epoch, 5, 4, chance.choice([GREEDY, wild]), run),
                Open("another", session, epoch, 5, 1 << 31, GREEDY, run),
                open_(run, session, epoch=epoch),
                commit(*some(), session=session, epoch=epoch, prompt=run),
                Commit(session, epoch, chance.randrange(12), 7, run),
                Close(session, epoch, chance.random() < 0.5),
                Refuse("a third", "no"),
                Draft("x", session, epoch, 3, 1, 1, (-1,), (5,), b"\x01"),
                Want("x", session, epoch),
            ]
        )

    for _ in range(400):
        said = message()
        for _ in range(chance.choice([1, 1, 2])):
            scene.bus.send("drafter", said)
        scene.pool.pump()
        scene.worker.turn(wait=False)
    scene.send(*(Close(session, 3, True) for session in range(4)))
    assert scene.worker.n_sessions == 0
    scene.send(open_(PROMPT[:40], session=9))
    assert scene.drafted(9) == told(6, PROMPT[:40])
