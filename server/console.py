"""The terminal of a process: one console, and duo's log on it as plain lines."""

from __future__ import annotations

import logging

from rich.console import Console
from rich.text import Text


class ConsoleHandler(logging.Handler):
    """Prints the records of the "duo" loggers as plain lines, warnings and errors in colour."""

    def __init__(self, console: Console) -> None:
        super().__init__(logging.INFO)
        self._console = console

    def emit(self, record: logging.LogRecord) -> None:
        style = (
            "red" if record.levelno >= logging.ERROR else "yellow" if record.levelno > logging.INFO else ""
        )
        self._console.print(Text(self.format(record), style), highlight=False, soft_wrap=True)


def log_to(console: Console) -> None:
    """Send duo's log to this console."""
    logger = logging.getLogger("duo")
    logger.setLevel(logging.INFO)
    logger.handlers = [ConsoleHandler(console)]
    logger.propagate = False
    logging.getLogger("duo.llama").setLevel(logging.WARNING)
