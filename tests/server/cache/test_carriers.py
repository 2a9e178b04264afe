"""Long jobs beside somebody who needs the machine."""

from __future__ import annotations

import threading

import pytest

from server.cache import carriers
from server.cache.carriers import Background

WAIT_S = 10.0


@pytest.mark.parametrize("ended_by", ["rest", "close"])
def test_long_job_yields_to_decoding(ended_by: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(carriers, "MOMENT_S", WAIT_S)
    one = Background("test")
    asked, answers, done = threading.Event(), list[bool](), threading.Event()

    def job() -> None:
        answers.append(one.go_on())
        one.yield_to(True)
        asked.set()
        answers.append(one.go_on())
        done.set()

    one.submit("a", job)
    assert asked.wait(WAIT_S)
    assert answers == [True]  # nobody needed it before
    if ended_by == "rest":
        one.yield_to(False)
        assert done.wait(WAIT_S)
        assert answers == [True, True]
        one.close(WAIT_S)
    else:
        one.close(WAIT_S)
        assert done.is_set()
        assert answers == [True, False]


def test_yielding_job_resumes_eventually(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(carriers, "PATIENT_S", 0.001)
    one = Background("test")
    one.hurry(False)
    one.yield_to(True)
    answers: list[bool] = []
    one.submit("a", lambda: answers.append(one.go_on()))
    assert one.wait(WAIT_S) == 0
    assert answers == [True]
    one.close(WAIT_S)
