"""A status line that is rewritten in place; nothing without a terminal."""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager

from rich.console import Console
from rich.live import Live
from rich.text import Text

from drafters.worker import Worker

EVERY_S = 0.5  # seconds between two lines


@contextmanager
def status_line(worker: Worker, console: Console) -> Generator[None]:
    """Show a worker's counts until the end of the with block."""
    if not console.is_terminal:
        yield
        return
    ended = threading.Event()
    thread = threading.Thread(target=_show, args=(worker, console, ended), name="duo-status", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _show(worker: Worker, console: Console, ended: threading.Event) -> None:
    before = 0
    with Live(console=console, refresh_per_second=4, transient=True) as live:
        while not ended.wait(EVERY_S):
            drafted, leads = worker.n_drafted, len(worker.leads)
            line = f"{leads} lead{'s' * (leads != 1)}, {worker.n_sessions} sessions, "
            line += f"{drafted} tokens drafted, {(drafted - before) / EVERY_S:.0f} a second"
            live.update(Text(line, "dim"))
            before = drafted
