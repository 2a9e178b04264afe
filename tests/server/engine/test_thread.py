"""Events from the engine's thread to the event loop: when they go, and that none is lost."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass, field, replace

import pytest

from server.engine import engine, live_generation
from server.engine import thread as engine_thread
from server.engine.engine import Engine
from server.engine.events import Committed, Event, Failed, Finished, Started
from server.engine.live_generation import LiveGeneration
from server.engine.proposer import Plan, Upcoming
from server.engine.thread import GATHER_S, EngineThread
from server.errors import BackendError, BusyError
from server.llama.backend import Batch, Logits
from tests.fake_backend import FakeBackend, FakeModel
from tests.support import PROMPT, NoProposer, request

N = 12


@dataclass(slots=True)
class Watched(FakeBackend):
    """A backend that knows whether a decode is under way."""

    decoding: bool = False

    def decode(self, batch: Batch) -> Logits:
        self.decoding = True
        try:
            return FakeBackend.decode(self, batch)
        finally:
            self.decoding = False


class Guessing(NoProposer):
    """A proposer that hands over before it proposes, as a draft model in the lead does."""

    thread: EngineThread

    def plan(self, step: Upcoming) -> Plan:
        if step.n_deciding:
            self.thread.hand_over(guessing=True)
        return super().plan(step)


async def told(
    overlaps: bool, monkeypatch: pytest.MonkeyPatch, proposer: NoProposer | None = None
) -> tuple[list[Event], list[bool]]:
    """Return two replies' events, and for each hand-over whether a decode was under way."""
    backend = Watched(FakeModel(eog_rate=0.0), step_s=2 * GATHER_S[False], overlaps=overlaps)
    loop, handed = asyncio.get_running_loop(), list[bool]()
    events: list[Event] = []
    made = proposer or NoProposer()
    thread = EngineThread(lambda emit: Engine(backend, made, emit), n_ctx=backend.n_ctx)
    if isinstance(made, Guessing):
        made.thread = thread
    call_soon = loop.call_soon_threadsafe

    def noted(*args: object, **named: object) -> object:
        handed.append(backend.decoding)
        return call_soon(*args, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(loop, "call_soon_threadsafe", noted)
    both = [thread.submit(request(prompt, max_tokens=N)) for prompt in (PROMPT, b"another")]
    thread.start()  # both begin in its first step
    for generation in both:
        events += [event async for arrived in generation for event in arrived]
    monkeypatch.setattr(loop, "call_soon_threadsafe", call_soon)
    await thread.stop()
    return events, handed


@dataclass(slots=True)
class Stopped(FakeBackend):
    """A backend that decodes nothing before it may."""

    may: threading.Event = field(default_factory=threading.Event)

    def decode(self, batch: Batch) -> Logits:
        self.may.wait()
        return FakeBackend.decode(self, batch)


async def test_dead_engine_fails_its_replies():
    backend = Stopped(FakeModel(eog_rate=0.0))
    thread = EngineThread(lambda emit: Engine(backend, NoProposer(), emit), n_ctx=backend.n_ctx)
    thread.start()
    reply, why = thread.submit(request(max_tokens=N)), BackendError("a part of it is gone")
    thread.abandon(why)
    thread.abandon(BackendError("told twice"))
    events = [event async for arrived in reply for event in arrived]
    assert events[-1] == Failed(why)
    assert thread.n_live == 0
    with pytest.raises(BusyError):
        thread.submit(request(max_tokens=N))
    backend.may.set()
    await thread.stop()


@pytest.mark.parametrize("overlaps", [False, True])
async def test_tokens_arrive_during_gpu_decode(overlaps: bool, monkeypatch: pytest.MonkeyPatch):
    events, handed = await told(overlaps, monkeypatch)
    assert sum(isinstance(event, Started) for event in events) == 2
    assert sum(isinstance(event, Finished) for event in events) == 2
    assert sum(len(event.tokens) for event in events if isinstance(event, Committed)) == 2 * N
    assert any(handed) is overlaps
    if overlaps:
        assert sum(not during for during in handed) == 1, "no decode follows the last end"


@pytest.mark.parametrize("many", [1, 2])
async def test_many_tokens_arrive_before_decode(many: int, monkeypatch: pytest.MonkeyPatch):
    """The loop is done with the tokens when the decode ends."""
    monkeypatch.setattr(engine, "MANY_SESSIONS", many)
    events, handed = await told(True, monkeypatch)
    assert sum(len(event.tokens) for event in events if isinstance(event, Committed)) == 2 * N
    assert (sum(not during for during in handed) >= N - 2) is (many == 1)


@pytest.mark.parametrize("overlaps", [False, True])
async def test_cpu_tokens_gather_longer(overlaps: bool, monkeypatch: pytest.MonkeyPatch):
    backend = FakeBackend(overlaps=overlaps)
    thread = EngineThread(lambda emit: Engine(backend, NoProposer(), emit), n_ctx=backend.n_ctx)
    assert thread.gather_s == GATHER_S[overlaps]
    assert GATHER_S[False] > GATHER_S[True]
    monkeypatch.setattr(engine_thread, "GATHER_S", {False: 3600.0, True: 0.0})
    _, handed = await told(overlaps, monkeypatch)
    assert (len(handed) > N) is overlaps


async def test_only_urgent_events_precede_guesses(monkeypatch: pytest.MonkeyPatch):
    events, handed = await told(True, monkeypatch, Guessing())
    assert sum(len(event.tokens) for event in events if isinstance(event, Committed)) == 2 * N
    assert sum(not during for during in handed) <= 2 * 2, "first tokens and ends"
    assert any(handed)


async def test_unread_reply_ends_with_reason(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(live_generation, "MOST_UNREAD", 20)
    backend = FakeBackend(FakeModel(eog_rate=0.0), n_ctx=80)
    thread = EngineThread(lambda emit: Engine(backend, NoProposer(), emit), n_ctx=backend.n_ctx)
    thread.start()
    unread = thread.submit(replace(request(max_tokens=None), n_keep=4))
    while thread.n_live:
        await asyncio.sleep(0)
    [kept] = [events async for events in unread]
    assert len(kept) == 20 + 1
    assert isinstance(kept[-1], Failed)
    assert kept[-1].error.status == 408
    await thread.stop()


async def test_waiting_reader_wakes_in_time():
    woken: list[list[Event]] = []
    generation = LiveGeneration(1, lambda id, keep: None, None)
    generation.wake_in(3600.0)
    generation.wake_in(0.0)
    async for events in generation:
        woken.append(events)
        if len(woken) == 1:
            generation.deliver(Started(5, 0))
        elif len(woken) == 2:
            generation.deliver(Failed(BackendError("over")))
            generation.wake_in(0.0)
    assert [len(events) for events in woken] == [0, 1, 1]
