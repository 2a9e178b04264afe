"""What the end of a terminal means to a process that runs there until it is told to end."""

from __future__ import annotations

import signal


def take_hangups_for_ends() -> None:
    """Treat SIGHUP (the terminal was closed) as SIGTERM, whatever handles that at the time; leave it ignored
    where it is, as under nohup."""
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda number, frame: signal.raise_signal(signal.SIGTERM))
