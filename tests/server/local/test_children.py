"""A child process: started again when it dies, whatever its restarts run into, and gone after close()."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path

import pytest

from server.llama.cuda_graphs import BY_DUO, OFF
from server.local import children
from server.local.children import Child

WAIT_S = 20.0


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(children, "SOONEST_S", 0.0)


class Starts:
    """Starts a process that ends with its standard input.

    started: released by every attempt.
    """

    def __init__(self, fails: int = 0) -> None:
        """Fail at the attempt `fails`, counted from 1."""
        self._fails = fails
        self.n = 0
        self.processes: list[subprocess.Popen[bytes]] = []
        self.started = threading.Semaphore(0)

    def __call__(self) -> subprocess.Popen[bytes]:
        self.n += 1
        self.started.release()
        if self.n == self._fails:
            raise BlockingIOError("no more processes")
        self.processes.append(subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE))
        return self.processes[-1]

    def wait(self) -> None:
        assert self.started.acquire(timeout=WAIT_S)


def test_a_start_that_fails_is_tried_again(caplog: pytest.LogCaptureFixture):
    starts = Starts(fails=2)
    with closing(Child("toy", starts, grace_s=WAIT_S)) as child:
        starts.processes[0].kill()
        for _ in range(3):
            starts.wait()
    assert starts.n == 3
    assert starts.processes[-1].returncode is not None
    assert child.ended
    assert "toy cannot be started: no more processes" in caplog.text


def test_a_first_start_that_fails_is_raised():
    with pytest.raises(BlockingIOError, match="no more processes"):
        Child("toy", Starts(fails=1), grace_s=WAIT_S)


def test_every_process_and_pipe_is_closed():
    starts = Starts()
    with closing(Child("toy", starts, grace_s=WAIT_S)):
        starts.wait()
        starts.processes[0].kill()
        starts.wait()
    assert len(starts.processes) == 2
    for process in starts.processes:
        assert process.returncode is not None
        assert process.stdin
        assert process.stdin.closed


def test_children_inherit_no_model_variables(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("THEIRS", "theirs")
    monkeypatch.setenv(OFF, BY_DUO)
    assert OFF not in children.inherited()
    assert children.inherited()["THEIRS"] == "theirs"
    monkeypatch.setenv(OFF, "1")
    assert children.inherited()[OFF] == "1"


def test_terminal_keys_do_not_reach_drafters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    stays = tmp_path / "python"
    stays.write_text("#!/bin/sh\ncat\n")  # ends with its standard input
    stays.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(stays))
    with closing(children.drafter("toy", [], {})) as child:
        assert os.getsid(child.pid) == child.pid


def test_closing_children_start_none():
    allowed, starts = threading.Event(), Starts()

    def start() -> subprocess.Popen[bytes]:
        process = starts()
        if starts.n == 2:
            assert allowed.wait(WAIT_S)
        return process

    child = Child("toy", start, grace_s=WAIT_S)
    starts.wait()
    starts.processes[0].kill()
    starts.wait()
    closer = threading.Thread(target=child.close)
    closer.start()  # while the second start is under way
    allowed.set()
    closer.join()
    assert [process.returncode is None for process in starts.processes] == [False, False]
    assert starts.n == 2
