"""Handle signals that ask a process to end: SIGTERM, SIGINT (Ctrl-C) and SIGHUP (its terminal has closed).

While a process starts, a signal raises an exception, so that the process leaves through its with blocks. Such
an exception is lost if Python is running a callback of llama.cpp or a garbage collection. So the signal is
remembered, and long work calls leave_if_requested().
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import NoReturn

_requested: type[BaseException] | None = None  # exception of the latest signal; None before the first


def stop_requested() -> bool:
    """Return True if a signal has asked this process to end. Safe from any thread."""
    return _requested is not None


def leave_if_requested() -> None:
    """Raise SystemExit(0), or KeyboardInterrupt after Ctrl-C, if a signal has asked this process to end."""
    if _requested is not None:
        _leave_by(_requested)


def raise_when_requested() -> None:
    """Make each signal that asks to end raise an exception, until take_over() is called.

    The exceptions are those of leave_if_requested().
    """
    global _requested
    _requested = None
    _handle_signals(lambda number: _leave_by(_remember_signal(number)))


def take_over(end: Callable[[], object]) -> None:
    """Make the first signal that asks to end call `end` instead of raising an exception.

    A second signal raises the exception of leave_if_requested(). If a signal came before this call, the call
    raises that exception.
    """

    def note(number: int) -> None:
        leave_if_requested()
        _remember_signal(number)
        end()

    _handle_signals(note)
    leave_if_requested()


def take_hangups_for_ends() -> None:
    """Handle SIGHUP with the handler that SIGTERM has when the signal arrives.

    A SIGHUP that is ignored, as under nohup, stays ignored.
    """
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda number, frame: signal.raise_signal(signal.SIGTERM))


def _handle_signals(work: Callable[[int], object]) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, frame: work(number) and None)
    take_hangups_for_ends()


def _remember_signal(number: int) -> type[BaseException]:
    global _requested
    _requested = KeyboardInterrupt if number == signal.SIGINT else SystemExit
    return _requested


def _leave_by(kind: type[BaseException]) -> NoReturn:
    raise kind(0) if kind is SystemExit else kind()
