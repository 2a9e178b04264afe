"""A plugin of pytest for llama.cpp's own server tests, see tests/dialect.

It writes a line of JSON for each case, ends one that takes too long, and expects what llama-server says with
the model at hand: other numbers of tokens, and no texts that only the tests' own models would say. It imports
nothing of duo: it runs under the interpreter of those tests.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
from collections.abc import Generator
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import pytest

LIMIT_S = 90
"""Seconds of a case: the slowest of llama-server takes 20 on two cores. Twice as many: a run with servers
that hang takes longer. Half: slow starts count as failures."""

_results = Path(os.environ["DIALECT_RESULTS"])
_of_model: set[tuple[str, str | int]] = {tuple(one) for one in json.loads(os.environ["DIALECT_OF_MODEL"])}
"""Cases with regular expressions that llama-server's texts do not fit, and with its numbers of tokens."""
_lenient = bool(os.environ.get("DIALECT_LENIENT"))
"""Whether every text and number fits, and those that do not are written down."""


def _fits(expected: str | int, *, otherwise: bool) -> bool:
    """Return True if it fits the model in use.

    otherwise: the test's own verdict.
    """
    case = os.environ["PYTEST_CURRENT_TEST"].rpartition(" ")[0]
    if otherwise or (case, expected) in _of_model:
        return True
    if _lenient:
        _write(case=case, expected=expected)
    return _lenient


class Tokens(int):
    """A number of tokens, or a token, that the tests know of their own models.

    The copied tests compare with one of these.
    """

    def __eq__(self, found: object) -> bool:
        return isinstance(found, int) and _fits(found, otherwise=int(self) == found)

    __hash__ = int.__hash__


def _write(**line: Any) -> None:
    with _results.open("a") as file:
        file.write(json.dumps(line) + "\n")


def pytest_sessionstart() -> None:
    """Download nothing: the shim provides the model."""
    utils: Any = importlib.import_module("utils")
    match = utils.match_regex

    def match_regex(regex: str, text: str) -> bool:
        return _fits(regex, otherwise=match(regex, text))

    def download_file(*_: str) -> str:
        return os.environ["DIALECT_DRAFT"]

    def make_request(*given: Any, **more: Any) -> Any:
        """Make a request whose header names have no case."""
        answer = ask(*given, **more)
        answer.headers = structures.CaseInsensitiveDict(answer.headers)
        return answer

    ask, structures = utils.ServerProcess.make_request, importlib.import_module("requests.structures")
    utils.ServerProcess.make_request = make_request
    utils.match_regex, utils.download_file = match_regex, download_file
    utils.Tokens = Tokens
    utils.ServerPreset.load_all = staticmethod(lambda: None)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, Any, Any]:
    signal.signal(signal.SIGALRM, _too_long)
    signal.alarm(LIMIT_S)
    try:
        return (yield)
    finally:
        signal.alarm(0)


def _too_long(_: int, __: FrameType | None) -> NoReturn:
    raise TimeoutError(f"more than {LIMIT_S} s")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call" or (report.when == "setup" and report.outcome != "passed"):
        why = str(report.longrepr).strip().splitlines() if report.outcome == "failed" else []
        told = [line.removeprefix("E ").strip() for line in why if line.startswith("E ")] or why[-1:]
        _write(case=report.nodeid, outcome=report.outcome, why=" | ".join(told)[:400])
