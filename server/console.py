"""The log of a process: plain lines on one console, or an object to a line for programs that read logs."""

from __future__ import annotations

import logging
import time
from typing import Any, Literal, TypeAlias

import orjson
from rich.console import Console
from rich.text import Text

from server.engine.account import CURRENT

LogFormat: TypeAlias = Literal["text", "json"]


class ConsoleHandler(logging.Handler):
    """Prints records as plain lines, warnings and errors in colour and with the id of the request that they
    are about."""

    def __init__(self, console: Console) -> None:
        super().__init__(logging.INFO)
        self._console = console

    def emit(self, record: logging.LogRecord) -> None:
        style = (
            "red" if record.levelno >= logging.ERROR else "yellow" if record.levelno > logging.INFO else ""
        )
        text = self.format(record)
        account = CURRENT.get()
        if style and account is not None:
            text = f"{text} [{account.id}]"
        self._console.print(Text(text, style), highlight=False, soft_wrap=True)


class JsonHandler(logging.Handler):
    """Prints records as JSON objects: time (ISO 8601, UTC), level, logger, message; request_id and exception
    where there are any, and whatever the record's `fields` say."""

    def __init__(self, console: Console) -> None:
        super().__init__(logging.INFO)
        self._console = console
        self._exceptions = logging.Formatter()

    def emit(self, record: logging.LogRecord) -> None:
        file = self._console.file
        file.write(orjson.dumps(self._object(record), default=str).decode() + "\n")
        file.flush()

    def _object(self, record: logging.LogRecord) -> dict[str, Any]:
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
            told["exception"] = self._exceptions.formatException(record.exc_info)
        return told | getattr(record, "fields", {})


def log_to(console: Console, form: LogFormat = "text") -> None:
    """Send duo's log to this console, and what uvicorn warns of."""
    handler = JsonHandler(console) if form == "json" else ConsoleHandler(console)
    for name, level in (("duo", logging.INFO), ("uvicorn", logging.WARNING)):
        logger = logging.getLogger(name)
        logger.setLevel(level)
        logger.handlers = [handler]
        logger.propagate = False
    logging.getLogger("duo.llama").setLevel(logging.WARNING)
