"""A plugin of pytest for llama.cpp's own server tests, see benchmarks/dialect.py: writes a line of JSON for
each case, ends one that takes too long, and makes texts that only its models would say count for nothing.
Imports nothing of duo: it runs under the interpreter of those tests."""

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
"""Seconds of a case: the slowest of llama-server takes 20 on two cores. Twice as many: a run with servers that
hang takes longer. Half: slow starts count as failures."""

_results = Path(os.environ["DIALECT_RESULTS"])
_of_model: set[tuple[str, str]] = {(case, regex) for case, regex in json.loads(os.environ["DIALECT_TEXTS"])}
"""Cases and regular expressions that llama-server's texts do not fit either, with this model."""
_lenient = bool(os.environ.get("DIALECT_LENIENT"))
"""Whether every text fits, and those that do not are written down."""


def _write(**line: Any) -> None:
    with _results.open("a") as file:
        file.write(json.dumps(line) + "\n")


def pytest_sessionstart() -> None:
    """Nothing is downloaded: the model that stands in is the shim's business."""
    utils = importlib.import_module("utils")
    match = utils.match_regex

    def match_regex(regex: str, text: str) -> bool:
        case = os.environ["PYTEST_CURRENT_TEST"].rpartition(" ")[0]
        if (case, regex) in _of_model or match(regex, text):
            return True
        if _lenient:
            _write(case=case, regex=regex)
        return _lenient

    utils.match_regex = match_regex
    utils.ServerPreset.load_all = staticmethod(lambda: None)
    utils.download_file = lambda url, output_file_path=None: os.environ["DIALECT_DRAFT"]


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
