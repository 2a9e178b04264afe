"""Measuring while nobody waits for a reply."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import closing

import pytest

from server.lead import idle_measuring
from server.lead.idle_measuring import IdleMeasuring
from server.llama.backend import Batch
from server.llama.context import LlamaContext

WAIT_S = 10.0  # at most, for what takes milliseconds


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idle_measuring, "QUIET_S", 0.01)
    monkeypatch.setattr(idle_measuring, "POLL_S", 0.01)


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


def test_measurements_run_one_after_the_other():
    order: list[int] = []
    done = threading.Event()

    def failing(_: object) -> None:
        order.append(1)
        raise ValueError("odd")

    def second(_: object) -> None:
        order.append(2)
        done.set()

    with closing(IdleMeasuring(lambda: False, [failing, second])) as one:
        one.start()
        assert done.wait(WAIT_S)
    assert order == [1, 2], "one that fails is not tried again"


def test_request_interrupts_until_it_has_ended(monkeypatch: pytest.MonkeyPatch):
    busy = threading.Event()
    refused = threading.Event()

    def is_busy() -> bool:
        if busy.is_set():
            refused.set()
        return busy.is_set()

    def request() -> None:
        if decodes.n_begun == 1:
            busy.set()

    decodes = Decodes(monkeypatch, request)
    with closing(IdleMeasuring(is_busy, [decodes])) as one:
        one.start()
        assert refused.wait(WAIT_S)
        assert not decodes.done.is_set()
        busy.clear()
        assert decodes.done.wait(WAIT_S)
    assert (decodes.n_begun, decodes.n_decodes) == (2, 3)


def test_end_gives_up_what_runs(monkeypatch: pytest.MonkeyPatch):
    begun, ending = threading.Event(), threading.Event()

    def wait_for_the_end() -> None:
        begun.set()
        assert ending.wait(WAIT_S)

    decodes = Decodes(monkeypatch, wait_for_the_end)
    one = IdleMeasuring(lambda: False, [decodes])
    one.start()
    assert begun.wait(WAIT_S)
    closer = threading.Thread(target=one.close)
    closer.start()
    assert one._ending.wait(WAIT_S)  # pyright: ignore[reportPrivateUsage]
    ending.set()
    closer.join(WAIT_S)
    assert not closer.is_alive()
    assert decodes.n_decodes == 1


def test_attempts_end_after_a_bounded_time(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(idle_measuring, "MEASURED_S", 0.2)
    n_decodes = 0
    refused = threading.Event()

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
    with closing(IdleMeasuring(lambda: False, [endless])) as one:
        one.start()
        assert refused.wait(WAIT_S)
        one._keeper.join(WAIT_S)  # pyright: ignore[reportPrivateUsage]
        assert not one._keeper.is_alive()  # pyright: ignore[reportPrivateUsage]
    assert n_decodes > 1


def test_unbegun_measurement_can_be_closed():
    IdleMeasuring(lambda: False, [lambda _: None]).close()
