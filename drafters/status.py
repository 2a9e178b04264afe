"""A status line that is rewritten in place; nothing without a terminal."""

from __future__ import annotations

import threading
from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.text import Text

from drafters.worker import Worker

EVERY_S = 0.5


class StatusLine:
    """Shows a worker's counts, read by a thread of its own, until the end of the with block."""

    def __init__(self, worker: Worker, console: Console) -> None:
        self._worker = worker
        self._console = console
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._show, name="duo-status", daemon=True)

    def __enter__(self) -> StatusLine:
        if self._console.is_terminal:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()

    def _show(self) -> None:
        before = 0
        with Live(console=self._console, refresh_per_second=4, transient=True) as live:
            while not self._ended.wait(EVERY_S):
                drafted = self._worker.n_drafted
                live.update(Text(_line(self._worker, (drafted - before) / EVERY_S), "dim"))
                before = drafted


def _line(worker: Worker, rate: float) -> str:
    leads = len(worker.leads)
    return (
        f"{leads} lead{'s' * (leads != 1)}, {worker.n_sessions} sessions, "
        f"{worker.n_drafted} tokens drafted, {rate:.0f} a second"
    )
