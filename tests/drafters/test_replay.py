"""The drafter that knows the texts: right and wrong as often as it is told, at its pace."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from drafters.delay import DelayedBus
from drafters.replay import ReplayDrafter, Script, read_texts
from server.errors import StartupError
from server.speculation.wire.messages import Draft, Message, Want
from server.speculation.wire.presence import Presence
from tests.drafters.scene import LEAD, OWN, Scene, commit, open_
from tests.memory_bus import MemoryPool

TEXTS = [[*range(1000, 3000)], [*range(5000, 5100)]]


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def replaying(accept: float = 1.0, td_s: float = 0.0, seed: int = 0) -> Scene:
    clock = Clock()
    script = Script(accept, td_s, seed)
    return Scene(drafter=ReplayDrafter(TEXTS, script, clock=clock, sleep=clock.sleep))


def test_replay_drafts_its_own_text():
    scene = replaying()
    scene.send(open_(TEXTS[1][:7], max_ahead=5))
    assert scene.drafted() == TEXTS[1][7:12]
    scene.send(commit(*TEXTS[1][7:10], prompt=TEXTS[1][:7]))
    assert scene.drafted() == TEXTS[1][7:15]


def test_replay_ends_with_the_text():
    scene = replaying()
    scene.send(open_(TEXTS[1][:97], max_ahead=50))
    assert scene.drafted() == TEXTS[1][97:]


def test_unknown_text_is_reported(caplog: pytest.LogCaptureFixture):
    caplog.set_level("INFO", "duo.drafter")
    scene = replaying()
    scene.send(open_((1, 2, 3)))
    scene.send(open_(TEXTS[1][:7], session=2, max_ahead=3))
    scene.send(commit(1, session=2, prompt=TEXTS[1][:7]))
    assert (scene.drafted(1), len(scene.drafted(2))) == ([], 3)
    assert len([m for m in caplog.messages if "none of the texts" in m]) == 2


@pytest.mark.parametrize("accept", [0.0, 0.5, 0.9, 1.0])
def test_accuracy_is_as_told(accept: float):
    drafter = ReplayDrafter(TEXTS, Script(accept, 0.0))
    right = sum(drafter.token(0, i) == TEXTS[0][i] for i in range(2000))
    assert right / 2000 == pytest.approx(accept, abs=0.03)


def test_seed_decides_where_it_errs():
    tokens = [
        [drafter.token(0, i) for i in range(200)]
        for drafter in (ReplayDrafter(TEXTS, Script(0.5, 0.0, seed=seed)) for seed in (1, 1, 2))
    ]
    assert tokens[0] == tokens[1] != tokens[2]


def test_a_guess_takes_its_time():
    scene = replaying(td_s=0.25)
    scene.send(open_(TEXTS[0][:5], max_ahead=8), open_(TEXTS[1][:5], session=2, max_ahead=8))
    drafter = scene.drafter
    assert isinstance(drafter, ReplayDrafter)
    assert drafter.td.value == 0.25
    assert drafter.busy_until == pytest.approx(8 * 0.25, abs=0.3)


def test_texts_are_read_from_lines(tmp_path: Path):
    path = tmp_path / "texts.jsonl"
    path.write_text("[1, 2, 3]\n\n[4]\n")
    assert read_texts(path) == [[1, 2, 3], [4]]
    path.write_text('["a"]\n')
    with pytest.raises(StartupError, match="token ids"):
        read_texts(path)
    with pytest.raises(StartupError, match="cannot read"):
        read_texts(tmp_path / "nothing")


# -- latency


class Ear:
    """Records what it hears, and when."""

    def __init__(self) -> None:
        self.heard: list[tuple[float, Message]] = []
        self.present: list[tuple[float, tuple[Presence, ...]]] = []
        self.changed = threading.Condition()

    def received(self, message: Message) -> None:
        with self.changed:
            self.heard.append((time.monotonic(), message))
            self.changed.notify_all()

    def peers(self, present: Sequence[Presence]) -> None:
        with self.changed:
            self.present.append((time.monotonic(), tuple(present)))
            self.changed.notify_all()

    def wait_for(self, n: int) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.heard) >= n, 20.0)


def test_delayed_messages_keep_order():
    pool, lead, drafter = MemoryPool(), Ear(), Ear()
    lead_bus = pool.bus(LEAD)
    bus = DelayedBus(pool.bus(OWN), 0.05)
    with pool.running():
        lead_bus.start(lead)
        bus.start(drafter)
        with drafter.changed:
            assert drafter.changed.wait_for(lambda: drafter.present, 20.0)
        began = time.monotonic()
        wants = [Want("drafter", i, 0) for i in range(20)]
        for want in wants:
            bus.send("lead", want)
        lead.wait_for(20)
        sent = time.monotonic()
        lead_bus.send("drafter", commit(1))
        drafter.wait_for(1)
    bus.close()
    lead_bus.close()
    assert [message for _, message in lead.heard] == wants
    assert lead.heard[0][0] - began >= 0.05
    assert drafter.heard[0][0] - sent >= 0.05


def test_a_closed_bus_is_silent_at_once():
    pool, lead = MemoryPool(), Ear()
    lead_bus = pool.bus(LEAD)
    lead_bus.start(lead)
    bus = DelayedBus(pool.bus(OWN), 60.0)
    bus.start(Ear())
    bus.send("lead", Draft("drafter", 1, 1, 1, 1, (), (), b""))
    bus.close()
    while pool.pump():
        pass
    assert lead.heard == []
