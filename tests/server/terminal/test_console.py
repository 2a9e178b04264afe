"""The log as plain lines, and as objects."""

from __future__ import annotations

import errno
import io
import json
import logging
from typing import Any

import pytest
from rich.console import Console

from server.engine.request_account import CURRENT, RequestAccount
from server.terminal.console import LogConsole, log_to


@pytest.fixture
def file() -> io.StringIO:
    """Return the log's text."""
    return io.StringIO()


def told(file: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.getvalue().splitlines()]


def fail() -> None:
    try:
        raise ValueError("a bug\nof two lines")
    except ValueError:
        logging.getLogger("duo.api").exception("it failed")


def test_each_line_is_an_object(file: io.StringIO):
    log_to(Console(file=file, width=20), "json")
    logging.getLogger("duo.lead").info("  model    %s", "a long name [bold]that no console may wrap or style")
    logging.getLogger("duo.requests").info("text", extra={"fields": {"ms": 1.5, "status": 200}})
    logging.getLogger("uvicorn.error").warning("of uvicorn")
    logging.getLogger("uvicorn.error").info("of no interest")
    fail()
    first, second, third, fourth = told(file)
    assert first["message"] == "model    a long name [bold]that no console may wrap or style"
    assert (first["level"], first["logger"]) == ("info", "duo.lead")
    assert first["time"].endswith("Z")
    assert (second["ms"], second["status"]) == (1.5, 200)
    assert (third["logger"], third["level"]) == ("uvicorn.error", "warning")
    assert "ValueError: a bug\nof two lines" in fourth["exception"]
    assert "request_id" not in fourth


class Gone(io.StringIO):
    """Standard output as a pipe whose reader has ended, or on a full disk."""

    def __init__(self, error: OSError) -> None:
        super().__init__()
        self.error, self.n_written = error, 0

    def write(self, text: str) -> int:
        self.n_written += 1
        raise self.error


@pytest.mark.parametrize("form", ["text", "json"])
@pytest.mark.usefixtures("file")
def test_unread_log_stops_nothing(form: Any):
    gone = Gone(BrokenPipeError())
    log_to(LogConsole(file=gone), form)
    for _ in range(3):
        logging.getLogger("duo.lead").warning("a line")
    assert gone.n_written == 1


@pytest.mark.parametrize("form", ["text", "json"])
@pytest.mark.usefixtures("file")
def test_unwritable_log_stops_nothing(form: Any, capsys: pytest.CaptureFixture[str]):
    log_to(LogConsole(file=Gone(OSError(errno.ENOSPC, "no space left"))), form)
    logging.getLogger("duo.lead").warning("a line")
    assert "no space left" in capsys.readouterr().err


@pytest.mark.parametrize("form", ["text", "json"])
def test_failures_carry_the_id_of_the_request(file: io.StringIO, form: Any):
    log_to(Console(file=file), form)
    token = CURRENT.set(RequestAccount(id="req_mine"))
    try:
        fail()
    finally:
        CURRENT.reset(token)
    if form == "json":
        assert told(file)[0]["request_id"] == "req_mine"
    else:
        assert file.getvalue().rstrip().endswith("[req_mine]")
