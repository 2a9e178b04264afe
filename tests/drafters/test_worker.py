"""What the drafter says, and what it survives."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from drafters.worker import MAX_FAILURES, MESSAGE_S, PUBLISH_S, WANT_S
from server.drafting.draft_session import GREEDY
from server.drafting.model_drafter import ModelDrafter
from server.errors import BackendError
from server.llama.backend import Batch, Logits
from server.sampling.params import SamplingParams
from server.speculation.wire.messages import Close, Commit, Draft, Message, Open, Refuse, Want, chain_next
from tests.drafters.scene import ENDLESS, LEAD, PROMPT, Scene, commit, open_, told
from tests.fake_backend import FakeBackend

# -- what is said


def test_first_guess_goes_at_once():
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


@pytest.mark.parametrize("n_sessions", [1, 2, 8, 16])
def test_message_rate_ignores_session_count(n_sessions: int):
    scene, n_turns = Scene(FakeBackend(ENDLESS, n_seqs=16, n_cells=16_384)), 96
    for session in range(1, n_sessions + 1):
        scene.bus.send("drafter", open_(session=session, max_ahead=n_turns))
    scene.pool.pump()
    for _ in range(n_turns):
        scene.now += MESSAGE_S
        scene.worker.turn(wait=False)
    scene.pool.pump()
    drafts = scene.lead.drafts()
    first = [next(draft for draft in drafts if draft.session == 1 + i) for i in range(n_sessions)]
    assert all(len(draft.tokens) == 1 for draft in first), "the beginning of a path goes out at once"
    seconds, apart_s = n_turns * MESSAGE_S, max(PUBLISH_S, n_sessions * MESSAGE_S)
    assert 0.5 * seconds / apart_s < len(drafts) / n_sessions - 1 <= seconds / apart_s


class Overlapping(FakeBackend):
    """A backend that leaves the thread free while it decodes, as a GPU does.

    sent: drafts sent before each decode began, and before it ended.
    """

    def __init__(self) -> None:
        super().__init__(ENDLESS, overlaps=True)
        self.n_sent: Callable[[], int] = lambda: 0
        self.sent: list[tuple[int, int]] = []

    def start(self, batch: Batch) -> Callable[[], Logits]:
        began, logits = self.n_sent(), super().start(batch)

        def wait() -> Logits:
            self.sent.append((began, self.n_sent()))
            return logits()

        return wait


def test_gpu_starts_before_sending_guess():
    backend = Overlapping()
    scene, plain = Scene(backend), Scene()
    backend.n_sent = lambda: scene.drafter_bus.counts["sent"]
    for one in (scene, plain):
        one.bus.send("drafter", open_())
        one.pool.pump()
        for _ in range(6):
            one.now += 2 * PUBLISH_S
            one.worker.turn(wait=False)
        one.settle()
        one.send(commit(*[draft.tokens[0] for draft in one.lead.drafts()[:1]]))
    assert [len(draft.tokens) for draft in scene.lead.drafts()[:5]] == [1] * 5
    assert backend.sent[:4] == [(0, 1), (1, 2), (2, 3), (3, 4)]
    assert scene.drafted() == plain.drafted()


def test_gpu_waits_while_messages_wait():
    backend = Overlapping()
    scene = Scene(backend)

    def tell() -> int:
        if len(backend.sent) == 2:  # the third decode that was begun ahead has ended
            scene.bus.send("drafter", commit(3))  # not what was guessed
            scene.pool.pump()
        return 0

    backend.n_sent = tell
    scene.send(open_(max_ahead=12))
    assert scene.drafted()[1:] == told(12, (*PROMPT, 3))
    assert len(backend.widths) == 4 + 12, "the one that was under way was the only one in vain"


def test_a_gap_makes_it_ask_for_everything():
    scene = Scene()
    scene.send(open_(), Commit(1, len(PROMPT) + 5, 1, (1,)), Commit(1, len(PROMPT) + 6, 1, (1,)))
    assert scene.lead.wants() == [Want("drafter", 1, 0)]
    scene.send(open_((*PROMPT, 1, 2)))
    assert scene.drafted()[-6:] == told(6, (*PROMPT, 1, 2))


def test_lost_open_is_asked_for():
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
    scene = Scene(drafter=ModelDrafter(FakeBackend(ENDLESS, step_s=0.001)))  # by the real clock
    scene.send(open_())
    assert scene.drafter_bus.presence.td_us >= 1000
    assert scene.lead.drafts()[-1].td_us >= 1000


def test_other_leads_commits_are_ignored():
    scene = Scene()
    scene.send(open_())
    heard = len(scene.lead.heard)
    scene.send(Close("another", 1, False), replace(open_((1, 2)), lead="another"))
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


def test_other_wire_version_is_unserved(caplog: pytest.LogCaptureFixture):
    scene = Scene()
    scene.pool.bus(replace(LEAD, id="old", wire=2)).start(scene.lead)
    scene.settle()
    assert scene.worker.leads == ["lead"]
    said = "cannot draft for lead old: it speaks version 2 of the wire, this drafter version 4"
    assert caplog.messages.count(said) == 1
    scene.send(replace(open_(), lead="old"))
    assert scene.worker.n_sessions == 0


def test_leaving_lead_takes_its_sessions():
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
    """A backend that fails for batches with this token, as often as it has lives."""

    poison, lives = ord("!"), 1000

    def decode(self, batch: Batch) -> Logits:
        if self.poison in batch.tokens and self.lives:
            self.lives -= 1
            self.widths.append(0)
            raise BackendError("a poisoned row")
        return FakeBackend.decode(self, batch)


def test_failing_session_spares_others():
    backend = Faulty(ENDLESS)
    scene = Scene(backend)
    scene.send(open_(b"wrong!", session=2), open_(b"right"))
    assert scene.drafted(1) == told(6, b"right")
    assert scene.drafted(2) == []
    assert 1000 - backend.lives == MAX_FAILURES


def test_a_passing_failure_is_forgotten():
    backend = Faulty(ENDLESS)
    scene = Scene(backend)
    scene.send(open_(b"fine so far"))
    said: list[int] = []
    for _ in range(3):
        backend.lives = MAX_FAILURES - 1
        said.append(Faulty.poison)
        scene.send(commit(*said, prompt=b"fine so far"))
        assert scene.drafted()[-6:] == told(6, [*b"fine so far", *said])
        assert backend.lives == 0


@pytest.mark.parametrize("token", [-1, 259, 1 << 30])
def test_tokens_outside_the_vocabulary_are_not_evaluated(token: int, caplog: pytest.LogCaptureFixture):
    caplog.set_level("INFO", "duo.drafter")
    scene = Scene()
    scene.send(open_((1, 2, token)), open_((1, 2, 3), session=2))
    assert (scene.drafted(1), scene.drafted(2)) == ([], told(6, (1, 2, 3)))
    scene.send(commit(3, token, session=2, prompt=(1, 2, 3)))
    assert len(scene.drafted(2)) == 6
    assert len([line for line in caplog.messages if "outside this model's vocabulary" in line]) == 2
    assert "decode of drafts failed" not in caplog.text


@pytest.mark.parametrize("seed", range(8))
def test_no_message_in_any_order_breaks_it(seed: int):
    """Sequences must not be mixed up either: a session opened afterwards is drafted for as usual."""
    chance = random.Random(seed)
    scene = Scene(FakeBackend(ENDLESS, n_cells=60, n_seqs=2, n_batch=8))
    tokens = [*range(60, 64)] * 4 + [-1, 258, 259, 10_000]
    wild = SamplingParams(float("nan"), -3, float("inf"), 7.0, 1)

    def some() -> tuple[int, ...]:
        return tuple(chance.choice(tokens) for _ in range(chance.randrange(8)))

    def message() -> Message:
        session, run = chance.randrange(4), some()
        return chance.choice(
            [
                Open("lead", session, 5, 4, chance.choice([GREEDY, wild]), run),
                Open("another", session, 5, 1 << 31, GREEDY, run),
                open_(run, session),
                commit(*some(), session=session, prompt=run),
                Commit(session, chance.randrange(12), 7, run),
                Close("lead", session, chance.random() < 0.5),
                Refuse("a third", "no"),
                Draft("x", session, 3, 1, 1, (-1,), (5,), b"\x01"),
                Want("x", session, chance.randrange(12)),
            ]
        )

    for _ in range(400):
        said = message()
        for _ in range(chance.choice([1, 1, 2])):
            scene.bus.send("drafter", said)
        scene.pool.pump()
        scene.worker.turn(wait=False)
    scene.send(*(Close(lead, session, True) for session in range(4) for lead in ("lead", "another")))
    assert scene.worker.n_sessions == 0
    scene.send(open_(PROMPT[:40], session=9))
    assert scene.drafted(9) == told(6, PROMPT[:40])
