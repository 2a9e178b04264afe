"""A status line that is rewritten in place; nothing without a terminal."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from rich.console import Console
from rich.live import Live
from rich.text import Text

from drafters.worker import Worker

EVERY_S = 0.5


@contextmanager
def status_line(worker: Worker, console: Console) -> Generator[None]:
    """Show a worker's counts until the end of the with block."""
    if not console.is_terminal:
        yield
        return
    line = _lines(worker).__next__
    with Live(get_renderable=line, console=console, refresh_per_second=1 / EVERY_S, transient=True):
        yield


def _lines(worker: Worker) -> Generator[Text]:
    before = 0
    while True:
        drafted, leads = worker.n_drafted, len(worker.leads)
        line = f"{leads} lead{'s' * (leads != 1)}, {worker.n_sessions} sessions, "
        line += f"{drafted} tokens drafted, {(drafted - before) / EVERY_S:.0f} a second"
        yield Text(line, "dim")
        before = drafted
