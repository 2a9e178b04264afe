"""The duo-drafter command, which connects a drafter, a bus and the worker."""

from __future__ import annotations

import contextlib
import logging
import os
import platform
import sys
import threading
from collections.abc import Generator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing
from dataclasses import replace
from importlib.metadata import version

from rich.console import Console
from rich.live import Live
from rich.text import Text

from drafters.delay import DelayedBus
from drafters.drafter_settings import DrafterSettings
from drafters.kinds import assemble
from drafters.worker import Worker
from server.errors import DuoError, StartupError, UsageError
from server.flags import read
from server.speculation.wire.bus import Bus
from server.speculation.wire.presence import Presence, unique_id
from server.speculation.wire.redis_client import check
from server.speculation.wire.streams import RedisBus
from server.stop_signals import raise_when_requested, take_over
from server.terminal.console import LogConsole, log_to

logger = logging.getLogger("duo.drafter")

_STDIN = 0
STATUS_S = 0.5  # seconds between two status lines


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command, and return its exit status.

    The status is 0 on success, 1 after an expected failure (printed in one line), 2 for bad usage, 130 after
    Ctrl-C.
    """
    try:
        settings = read(DrafterSettings, sys.argv[1:] if argv is None else argv).pinned()
        return run(settings)
    except DuoError as error:
        print(f"duo-drafter: {error.message}", file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1
    except KeyboardInterrupt:
        return 130


def _on_threads(settings: DrafterSettings) -> str:
    if settings.kind != "model":
        return ""
    return f", {settings.threads} thread{'s' if settings.threads != 1 else ''}"


def run(settings: DrafterSettings) -> int:
    """Draft until SIGTERM, SIGINT or the closing of the terminal, and return 0. Raises StartupError."""
    console = LogConsole(highlight=False)
    log_to(console)
    url = settings.redis_url
    if not url:
        raise StartupError("no Redis is given: give the URL of the leads' Redis with --redis or DUO_REDIS")
    id = unique_id(settings.name or platform.node())
    check(url, settings.pool, f"drafter:{id}")
    raise_when_requested()
    with ExitStack() as stack:
        kind = assemble(settings, stack)
        logger.info("duo-drafter %s: %s%s", version("duo"), kind.name, _on_threads(settings))
        own = Presence(
            id,
            "drafter",
            kind.name,
            version("duo"),
            kind.vocabulary,
            kind.capacity,
            kind="head" if settings.head else settings.kind,
            rows=kind.rows,
        )
        if kind.host:
            own = replace(own, host=kind.host, kernel=kind.host)
        bus: Bus = RedisBus(url, settings.pool, own)
        if settings.latency_ms:
            bus = DelayedBus(bus, settings.latency_ms / 1000)
        stack.enter_context(closing(bus))
        worker = Worker(bus, own, kind.drafter)
        take_over(worker.stop)
        if settings.end_with_parent:
            threading.Thread(target=_stop_at_end_of_input, args=(worker,), daemon=True).start()
        if kind.browser is not None:
            kind.browser.introduce(id)
            threading.Thread(target=kind.browser.listen, args=(worker.stop,), daemon=True).start()
        stack.enter_context(status_line(worker, console))
        bus.start(worker)
        worker.run()
    return 0


def _stop_at_end_of_input(worker: Worker) -> None:
    with contextlib.suppress(OSError):  # without standard input, stop too
        while os.read(_STDIN, 1024):
            pass
    worker.stop()


def status_line(worker: Worker, console: Console) -> AbstractContextManager[object]:
    """Return a context manager that shows a worker's counts in one line, if the console is a terminal."""
    if not console.is_terminal:
        return contextlib.nullcontext()
    line = _status_lines(worker).__next__
    return Live(get_renderable=line, console=console, refresh_per_second=1 / STATUS_S, transient=True)


def _status_lines(worker: Worker) -> Generator[Text]:
    before = 0
    while True:
        drafted, leads = worker.n_drafted, len(worker.leads)
        line = f"{leads} lead{'s' * (leads != 1)}, {worker.n_sessions} sessions, "
        line += f"{drafted} tokens drafted, {(drafted - before) / STATUS_S:.0f} a second"
        yield Text(line, "dim")
        before = drafted
