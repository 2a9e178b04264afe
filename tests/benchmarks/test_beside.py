"""The program that measures steps beside others, with the bundled draft model and a load that is none."""

from __future__ import annotations

import subprocess
from contextlib import closing, suppress

import pytest

from benchmarks import beside
from benchmarks.beside import busy, loads, main, pace
from drafters.drafter_settings import BUNDLED_MODEL
from server.llama.llamacpp import LlamaBackend, LlamaOptions


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beside, "SETTLE_S", 0.0)
    monkeypatch.setattr(beside, "TIMED_S", 0.01)


def test_loads_are_told_by_what_each_program_takes():
    assert loads("0,0.5,1+0.3") == [(0.0,), (0.5,), (1.0, 0.3)]


def test_programs_end_with_what_they_are_beside(monkeypatch: pytest.MonkeyPatch):
    started = list[subprocess.Popen[bytes]]()

    class Remembered(subprocess.Popen[bytes]):
        def __init__(self, arguments: list[str]) -> None:
            super().__init__(arguments)
            started.append(self)

    monkeypatch.setattr(beside.subprocess, "Popen", Remembered)
    with suppress(KeyboardInterrupt), busy((0.0, 0.1, 0.2)):
        assert len(started) == 2
        assert all(one.poll() is None for one in started)
        raise KeyboardInterrupt
    assert all(one.poll() is not None for one in started)


@pytest.mark.model
def test_both_ways_are_measured_and_leave_nothing():
    with closing(LlamaBackend(LlamaOptions(BUNDLED_MODEL, 256, 1, n_threads=2))) as backend:
        assert pace(backend, 4, all_threads=True).n_threads == 2
        found = pace(backend, 4, all_threads=False)
        assert found.rate > 0
        assert 1 <= found.n_threads <= 2
        assert backend.length(0) == 0


@pytest.mark.model
def test_the_table_has_a_line_for_each_load_and_width(capsys: pytest.CaptureFixture[str]):
    arguments = ["--model", str(BUNDLED_MODEL), "--widths", "1,2", "--loads", "0,0.1", "--rounds", "1"]
    assert main(arguments) == 0
    assert len([line for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]) == 6
