"""Measuring while nobody waits for a reply, and starting what can wait until then."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from server.engine.engine import Engine
from server.engine.thread import Command, EngineThread
from server.lead import attention, idle_measuring
from server.lead.attention import AttentionChoice
from server.lead.idle_measuring import IdleMeasuring
from server.llama.attention_times import WIDTHS, AttentionTimes
from server.llama.backend import Batch
from server.llama.context import LlamaContext
from server.llama.options import LlamaOptions
from tests.fake_backend import FakeBackend
from tests.support import NoProposer

WAIT_S = 10.0  # at most, for what takes milliseconds


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idle_measuring, "QUIET_S", 0.01)
    monkeypatch.setattr(idle_measuring, "POLL_S", 0.01)


class BareThread:
    """An engine's thread without an engine."""

    def __init__(self) -> None:
        self.wanted = threading.Event()
        self.asked = threading.Event()  # set when somebody has asked it while it was wanted
        self.pool = ThreadPoolExecutor(1)

    @property
    def is_wanted(self) -> bool:
        if self.wanted.is_set():
            self.asked.set()
        return self.wanted.is_set()

    def command(self, command: Command) -> None:
        self.pool.submit(command, cast(Any, None))


@pytest.fixture
def bare() -> Generator[BareThread]:
    thread = BareThread()
    with thread.pool:
        yield thread


@contextmanager
def running() -> Generator[EngineThread]:
    """Yield the thread of an engine over the toy model."""
    backend = FakeBackend()
    thread = EngineThread(lambda emit: Engine(backend, NoProposer(), emit), n_ctx=backend.n_ctx)

    async def start() -> None:
        thread.start()

    asyncio.run(start())
    yield thread
    asyncio.run(thread.stop())


class Decodes:
    """A measurement of several decodes without a model.

    `before_second` is called before the second.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, before_second: Callable[[], object]) -> None:
        self.n_begun = self.n_decodes = 0
        self.done = threading.Event()
        self._before_second = before_second

        def start(context: LlamaContext, batch: Batch) -> None:
            self.n_decodes += 1

        monkeypatch.setattr(LlamaContext, "start", start)

    def __call__(self, make: Callable[[], LlamaContext]) -> None:
        self.n_begun += 1
        context = make()
        context.start(Batch())
        self._before_second()
        context.start(Batch())
        self.done.set()


def test_measurements_run_one_after_the_other(bare: BareThread):
    order: list[int] = []
    done = threading.Event()

    def failing(_: object) -> None:
        order.append(1)
        raise ValueError("odd")

    def second(_: object) -> None:
        order.append(2)

    def broken_rest() -> None:
        order.append(3)
        raise ValueError("odd")

    with closing(IdleMeasuring(bare, [failing, second], [broken_rest, done.set])) as one:
        one.start()
        assert done.wait(WAIT_S)
    assert order == [1, 2, 3], "one that fails is not tried again"


def test_request_interrupts_until_it_has_ended(bare: BareThread, monkeypatch: pytest.MonkeyPatch):
    def request() -> None:
        if decodes.n_begun == 1:
            bare.wanted.set()

    decodes = Decodes(monkeypatch, request)
    with closing(IdleMeasuring(bare, [decodes])) as one:
        one.start()
        assert bare.asked.wait(WAIT_S)
        assert not decodes.done.is_set()
        bare.wanted.clear()
        assert decodes.done.wait(WAIT_S)
    assert (decodes.n_begun, decodes.n_decodes) == (2, 3)


def test_end_gives_up_what_runs(bare: BareThread, monkeypatch: pytest.MonkeyPatch):
    begun, ending = threading.Event(), threading.Event()

    def wait_for_the_end() -> None:
        begun.set()
        assert ending.wait(WAIT_S)

    decodes = Decodes(monkeypatch, wait_for_the_end)
    one = IdleMeasuring(bare, [decodes])
    one.start()
    assert begun.wait(WAIT_S)
    closer = threading.Thread(target=one.close)
    closer.start()
    assert one._ending.wait(WAIT_S)  # pyright: ignore[reportPrivateUsage]
    ending.set()
    closer.join(WAIT_S)
    assert not closer.is_alive()
    assert decodes.n_decodes == 1


def test_a_signal_leaves_the_engine_alive(bare: BareThread):
    """leave_if_requested() raises it within a decode."""
    done = threading.Event()
    n_begun = 0

    def leaving(_: object) -> None:
        nonlocal n_begun
        n_begun += 1
        if n_begun == 1:
            raise SystemExit(0)
        done.set()

    with closing(IdleMeasuring(bare, [leaving])) as one:
        one.start()
        assert done.wait(WAIT_S)


def test_an_ended_engine_is_not_waited_for():
    asked = threading.Event()

    class Ended(BareThread):
        def command(self, command: Command) -> None:
            asked.set()

    one = IdleMeasuring(Ended(), [lambda _: None])
    one.start()
    assert asked.wait(WAIT_S)
    one.close()
    assert not one._keeper.is_alive()  # pyright: ignore[reportPrivateUsage]


def test_attempts_end_after_a_bounded_time(bare: BareThread, monkeypatch: pytest.MonkeyPatch):
    n_decodes = 0  # each takes a second
    monkeypatch.setattr(idle_measuring, "time", SimpleNamespace(monotonic=lambda: float(n_decodes)))
    monkeypatch.setattr(idle_measuring, "MEASURED_S", 2.0)
    refused, rest = threading.Event(), threading.Event()

    def start(context: LlamaContext, batch: Batch) -> None:
        nonlocal n_decodes
        n_decodes += 1

    def endless(make: Callable[[], LlamaContext]) -> None:
        context = make()
        try:
            while True:
                context.start(Batch())
        finally:
            refused.set()

    monkeypatch.setattr(LlamaContext, "start", start)
    with closing(IdleMeasuring(bare, [endless], [rest.set])) as one:
        one.start()
        assert refused.wait(WAIT_S)
        one._keeper.join(WAIT_S)  # pyright: ignore[reportPrivateUsage]
        assert not one._keeper.is_alive()  # pyright: ignore[reportPrivateUsage]
    assert n_decodes == 3, "the one that ends too late is the last"
    assert rest.is_set()


def test_the_rest_starts_though_nobody_pauses(bare: BareThread, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(idle_measuring, "REST_WITHIN_S", 0.1)
    monkeypatch.setattr(idle_measuring, "QUIET_S", 1000.0)
    bare.wanted.set()
    begun, measured = threading.Event(), list[object]()
    with closing(IdleMeasuring(bare, [measured.append], [begun.set])) as one:
        one.start()
        assert begun.wait(WAIT_S)
    assert not measured


def test_waiting_command_interrupts(monkeypatch: pytest.MonkeyPatch):
    with running() as engine:
        obeyed = threading.Event()

        def ask() -> None:
            if decodes.n_begun == 1:
                engine.command(lambda _: obeyed.set())

        decodes = Decodes(monkeypatch, ask)
        with closing(IdleMeasuring(engine, [decodes])) as one:
            one.start()
            assert obeyed.wait(WAIT_S)
            assert decodes.done.wait(WAIT_S)
    assert (decodes.n_begun, decodes.n_decodes) == (2, 3)


def test_disturbed_times_beside_the_engine_choose_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """On any thread but the engine's llama.cpp's threads sleep, longest without flash attention."""
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def times(on_s: float, off_s: float) -> AttentionTimes:
        return AttentionTimes({"on": [[on_s] * 3] * len(WIDTHS), "off": [[off_s] * 3] * len(WIDTHS)})

    def measured(*_: object, **__: object) -> AttentionTimes:
        beside = threading.current_thread().name != "duo-engine"
        return times(on_s=0.030, off_s=0.045) if beside else times(on_s=0.025, off_s=0.009)

    monkeypatch.setattr(attention, "measure", measured)
    model, options = cast(Any, None), LlamaOptions(tmp_path / "model.gguf", 1024, 4)
    choice, done = AttentionChoice(), threading.Event()
    choice(model, options)
    with (
        running() as engine,
        closing(
            IdleMeasuring(engine, [lambda make: choice.measure_again(model, options, make)], [done.set])
        ) as one,
    ):
        one.start()
        assert done.wait(WAIT_S)
    assert AttentionChoice()(model, options) == "off"


def test_unbegun_measurement_can_be_closed(bare: BareThread):
    IdleMeasuring(bare, [lambda _: None]).close()
