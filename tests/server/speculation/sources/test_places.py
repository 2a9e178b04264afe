"""Places in sessions are for drafters that bring something, by what was measured."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest

from server.engine.proposer import OpenedSession
from server.engine.request import Speculation
from server.sampling.noise import mix
from server.speculation.account import LOSS
from server.speculation.policy import Policy
from server.speculation.sources.assignment import MAX_PER_SESSION
from server.speculation.speculator import Speculator
from server.speculation.wire.messages import ROOT, Commit, Draft, Message, Open
from server.speculation.wire.presence import Presence
from tests.memory_bus import MemoryPool
from tests.server.speculation.driving import committed, take_in
from tests.server.speculation.sources.test_remote import CARD, SAMPLING, Heard, Scene
from tests.server.speculation.test_speculator import Clock
from tests.support import PROMPT

TOKEN, OTHER = 9, 8  # what every session says, and what none does
READ = len(PROMPT) // 8  # steps in which a drafter may read the prompt

Says = Callable[[int], int | None]
"""The guess for a position, None: no guess."""


def silent(_: int) -> None:
    return None


def right(_: int) -> int:
    return TOKEN


def wrong(_: int) -> int:
    return OTHER


def seldom(position: int) -> int | None:
    return TOKEN if position % 16 == 0 else None


def share(of: float, key: int) -> Says:
    return lambda position: TOKEN if mix(position ^ key << 32) < of * 2**64 else OTHER


class Guessing(Heard):
    """A drafter that guesses one token after each that it is told, as `says` says."""

    def __init__(self, pool: MemoryPool, presence: Presence, says: Says) -> None:
        self.says = says
        super().__init__(pool, presence)

    def received(self, message: Message) -> None:
        super().received(message)
        if isinstance(message, Open | Commit):
            base = len(message.tokens) + (message.base if isinstance(message, Commit) else 0)
            guess = self.says(base)
            if guess is not None:
                id = self.bus.presence.id
                draft = Draft(id, message.session, base, message.chain, 5, (ROOT,), (guess,), b"\x80")
                self.bus.send("lead", draft)


class Places(Scene):
    """Sessions that write TOKEN, and drafters elsewhere, which take 5 us for a guess if they make any."""

    def __init__(self) -> None:
        self.clock = Clock()
        super().__init__(clock=self.clock)
        self.speculator = Speculator(Policy(gate=False), remote=self.remote)  # nobody rests
        self.tokens: dict[int, list[int]] = {}

    def join(self, id: str, says: Says, capacity: int = 8) -> Guessing:
        presence = Presence(id, "drafter", "toy", "0", CARD, capacity, td_us=5, kernel="elsewhere")
        drafter = Guessing(self.pool, presence, says)
        self.settle()
        return drafter

    def begin(self, id: int, n_prompt: int = len(PROMPT)) -> None:
        self.tokens[id] = list(PROMPT * (1 + n_prompt // len(PROMPT)))[:n_prompt]
        self.speculator.open(OpenedSession(id, self.tokens[id], SAMPLING, Speculation()))
        self.deliver()

    def deliver(self) -> None:
        while self.pool.pump():
            pass

    def step(self, n: int = 1) -> None:
        """Take n steps of all sessions."""
        for _ in range(n):
            self.clock.now += 0.01
            take_in(self.speculator, len(self.tokens))
            for tokens in self.tokens.values():
                tokens.append(TOKEN)
            committed(self.speculator, *self.tokens)
            self.deliver()

    def end(self, id: int) -> None:
        del self.tokens[id]
        self.speculator.close(id, keep=True)
        self.deliver()


def n_open(drafters: Iterable[Heard]) -> int:
    return sum(len(drafter.opened()) for drafter in drafters)


@pytest.mark.parametrize("says", [silent, wrong, seldom])
def test_weak_drafters_never_block_strong(says: Says):
    """The weak ones were first and take less time for a guess."""
    scene = Places()
    bad = [scene.join(f"bad {i}", says) for i in range(MAX_PER_SESSION)]
    scene.begin(1)
    good = scene.join("good", right)
    assert (n_open(bad), good.opened()) == (MAX_PER_SESSION, [])
    scene.step(READ + 64)
    assert len(good.opened()) == 1
    for _ in range(40):
        scene.step(100)
        assert len(good.opened()) == 1, "it is the best one"
    scene.end(1)
    scene.begin(2)
    assert len(good.opened()) == 1, "its rank is that of all sessions"


def test_silent_drafters_yield_to_good():
    scene = Places()
    bad = [scene.join(f"bad {i}", silent) for i in range(12)]
    scene.begin(1)
    good = scene.join("good", right)
    scene.step(2 * 14 * 32)
    for _ in range(100):
        scene.step(32)
        assert len(good.opened()) == 1
    assert all(any(isinstance(message, Open) for message in drafter.messages) for drafter in bad)
    assert n_open(bad) == MAX_PER_SESSION - 1


def test_late_starter_gets_another_chance():
    """The chance comes when its cost is a hundredth of the tokens made since."""
    scene = Places()
    bad = [scene.join(f"bad {i}", silent) for i in range(MAX_PER_SESSION)]
    scene.begin(1)
    scene.join("good", right)
    scene.step(READ + 64)
    [late] = [drafter for drafter in bad if not drafter.opened()]
    late.says = right
    scene.step(int(20 / LOSS))
    assert late.opened() == []
    scene.step(int(40 / LOSS))
    assert len(late.opened()) == 1
    scene.step(400)
    assert len(late.opened()) == 1


def test_better_drafter_replaces_worse():
    scene = Places()
    for i in range(MAX_PER_SESSION):
        scene.join(f"{i}", share(0.33, i))
    scene.begin(1)
    better = scene.join("better", share(0.67, MAX_PER_SESSION))
    scene.step(READ + 64)
    assert len(better.opened()) == 1
    scene.step(1_000)
    assert len(better.opened()) == 1


def test_about_equals_keep_their_places():
    """Taking a place costs a prompt to read."""
    scene = Places()
    drafters = [scene.join(f"{i}", share(0.7, i)) for i in range(MAX_PER_SESSION + 1)]
    scene.begin(1)
    scene.step(3_200)
    assert (
        sum(isinstance(message, Open) for drafter in drafters for message in drafter.messages)
        == MAX_PER_SESSION
    )


def test_late_first_guess_is_forgiven():
    scene = Places()
    drafters = [scene.join(f"{i}", silent) for i in range(MAX_PER_SESSION)]
    scene.begin(1)
    scene.join("waiting", silent)
    scene.step(READ + 14)
    for drafter in drafters:
        drafter.says = right
    scene.step(200)
    assert n_open(drafters) == MAX_PER_SESSION


@pytest.mark.parametrize("reads", [180, 10_000])
def test_long_prompt_reader_is_awaited_boundedly(reads: int):
    """reads: steps until its first guess. Ten tokens are read in a step."""
    scene = Places()
    drafters = [scene.join(f"{i}", silent) for i in range(MAX_PER_SESSION)]
    scene.begin(1, n_prompt=1_800)
    waiting = scene.join("waiting", silent)
    for step in range(600):
        if step == reads:
            for drafter in drafters:
                drafter.says = right
        scene.step()
    assert (n_open(drafters), n_open([waiting])) == (
        (MAX_PER_SESSION, 0) if reads < 600 else (MAX_PER_SESSION - 1, 1)
    )


def test_early_guesses_count_once():
    scene = Places()
    drafter = scene.join("drafter", silent)
    scene.begin(1, n_prompt=320)  # read in 40 steps
    [session] = scene.speculator._sessions.values()  # pyright: ignore[reportPrivateUsage]
    scene.step(36)
    drafter.says = right
    scene.step(80)
    assert session.yields["drafter"].missed == 0.0
    assert 0 < session.yields["drafter"].right <= 84


def test_single_place_avoids_impossible_sessions():
    """A session may be too long for a drafter while another session has none."""
    scene = Places()

    def short(position: int) -> int | None:
        return TOKEN if position < 500 else None

    drafter = scene.join("drafter", short, capacity=1)
    scene.begin(1, n_prompt=600)
    scene.begin(2)
    [long] = drafter.opened()
    scene.step(600 // 8 + 64)
    [session] = drafter.opened()
    assert session != long
    scene.step(200)
    assert drafter.opened() == [session]


def test_free_place_helps_bad_sessions():
    scene = Places()
    good = scene.join("good", right, capacity=1)
    scene.begin(1)
    bad = scene.join("bad", silent)
    scene.begin(2)
    [first] = good.opened()
    assert len(bad.opened()) == 2
    scene.end(1)
    [second] = good.opened()
    assert second != first


def test_undrafted_sessions_come_first():
    scene = Places()
    good, bad = scene.join("good", right, capacity=1), scene.join("bad", silent, capacity=2)
    for id in (1, 2):
        scene.begin(id)
    assert good.opened() == bad.opened()[:1]
    _, second = bad.opened()
    scene.begin(3)
    scene.end(1)
    [third] = good.opened()
    assert third != second


def test_measured_ranks_survive_reconnection():
    scene = Places()
    everybody = [scene.join(f"{i}", right if i else wrong) for i in range(MAX_PER_SESSION + 1)]
    for session in range(8):
        scene.begin(session)
    scene.step(1_000)
    assert [len(drafter.opened()) for drafter in everybody] == [0] + [8] * MAX_PER_SESSION
    for session in range(8):
        scene.end(session)
        scene.begin(session)
        assert [len(drafter.opened()) for drafter in everybody] == [0] + [8] * MAX_PER_SESSION
    for drafter in everybody:
        drafter.messages.clear()
    scene.pool.disconnect()
    scene.settle()
    scene.pool.connect()
    scene.settle()
    assert [len(drafter.opened()) for drafter in everybody] == [0] + [8] * MAX_PER_SESSION
