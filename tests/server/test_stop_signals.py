"""What asks a process to end is not lost, wherever it is met."""

from __future__ import annotations

import ctypes
import signal

import pytest

from server import stop_signals
from server.llama.library import LoadedModel
from server.llama.load_progress import LoadProgress
from server.llama.options import Weights
from server.settings import BUNDLED_MODEL
from server.stop_signals import (
    leave_if_requested,
    raise_when_requested,
    stop_requested,
    take_hangups_for_ends,
    take_over,
)


@pytest.fixture(autouse=True)
def hangups() -> None:
    signal.signal(signal.SIGHUP, lambda number, frame: None)  # unlike the default, a failure that can be told


@pytest.fixture
def ends() -> list[int]:
    """Return the signals that a handler of SIGTERM got."""
    return []


def test_hangup_reaches_current_handler(ends: list[int]):
    take_hangups_for_ends()
    signal.signal(signal.SIGTERM, lambda number, frame: ends.append(number))
    signal.raise_signal(signal.SIGHUP)
    assert ends == [signal.SIGTERM]


def test_under_nohup_a_hangup_stays_ignored(ends: list[int]):
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    take_hangups_for_ends()
    signal.signal(signal.SIGTERM, lambda number, frame: ends.append(number))
    signal.raise_signal(signal.SIGHUP)
    assert ends == []


@pytest.mark.parametrize(
    ("number", "kind"),
    [(signal.SIGTERM, SystemExit), (signal.SIGHUP, SystemExit), (signal.SIGINT, KeyboardInterrupt)],
)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_callback_interrupt_is_remembered(number: int, kind: type[BaseException]):
    raise_when_requested()
    leave_if_requested()
    with pytest.raises(kind):
        signal.raise_signal(number)
    raise_when_requested()
    assert not stop_requested()
    ctypes.CFUNCTYPE(None)(lambda: signal.raise_signal(number))()
    assert stop_requested()
    assert not LoadProgress("a model")(0.5)
    with pytest.raises(kind):
        leave_if_requested()


@pytest.mark.model
def test_ending_process_loads_no_model(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(stop_signals, "_requested", SystemExit)
    with pytest.raises(SystemExit):
        LoadedModel(BUNDLED_MODEL, Weights())


def test_second_signal_ends_the_process():
    raise_when_requested()
    noted: list[bool] = []
    take_over(lambda: noted.append(True))
    signal.raise_signal(signal.SIGTERM)
    assert noted == [True]
    with pytest.raises(SystemExit) as left:
        signal.raise_signal(signal.SIGINT)
    assert left.value.code == 0
    assert noted == [True]


def test_earlier_signal_is_not_lost(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(stop_signals, "_requested", KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        take_over(lambda: None)
