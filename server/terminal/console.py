"""Log of a process: plain lines on a console, or JSON objects for programs that read logs."""

from __future__ import annotations

import logging
import time
from typing import Any, Literal, TypeAlias

import orjson
from rich.console import Console
from rich.text import Text

from server.engine.request_account import CURRENT

LogFormat: TypeAlias = Literal["text", "json"]


class LogConsole(Console):
    """A console that stops printing once its pipe is closed. Rich's would end the process or thread."""

    def on_broken_pipe(self) -> None:
        self.quiet = True


class _Handler(logging.Handler):
    def __init__(self, console: Console, form: LogFormat) -> None:
        super().__init__(logging.INFO)
        self._console = console
        self._json = form == "json"

    def emit(self, record: logging.LogRecord) -> None:
        """Print a record. Never raises, so that a full disk does not end the thread that logs."""
        try:
            line = _as_json(record) if self._json else self._plain_line(record)
            self._console.print(line, highlight=False, soft_wrap=True)
        except Exception:
            self.handleError(record)

    def _plain_line(self, record: logging.LogRecord) -> Text:
        """Return a record as a line; warnings and errors are in colour, with the id of their request."""
        error = record.levelno >= logging.ERROR
        style = "red" if error else "yellow" if record.levelno > logging.INFO else ""
        account = CURRENT.get()
        told = f" [{account.id}]" if style and account is not None else ""
        return Text(self.format(record) + told, style)


def _as_json(record: logging.LogRecord) -> Text:
    """Return a record as a JSON object.

    Its members are time (ISO 8601, UTC), level, logger and message, the record's `fields`, and request_id and
    exception if there are any.
    """
    seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
    told: dict[str, Any] = {
        "time": f"{seconds}.{int(record.msecs):03d}Z",
        "level": record.levelname.lower(),
        "logger": record.name,
        "message": record.getMessage().strip(),
    }
    account = CURRENT.get()
    if account is not None:
        told["request_id"] = account.id
    if record.exc_info:
        told["exception"] = logging.Formatter().formatException(record.exc_info)
    return Text(orjson.dumps(told | getattr(record, "fields", {}), default=str).decode())


def log_to(console: Console, form: LogFormat = "text") -> None:
    """Print duo's log and uvicorn's warnings on this console, in the given form."""
    handler = _Handler(console, form)
    for name, level in (("duo", logging.INFO), ("uvicorn", logging.WARNING)):
        logger = logging.getLogger(name)
        logger.setLevel(level)
        logger.handlers = [handler]
        logger.propagate = False
    logging.getLogger("duo.llama").setLevel(logging.WARNING)
