"""duo doctor on the bundled models."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from server.cli import main
from server.doctor import examination
from server.doctor.diagnosis import BESIDE, INSIDE, NOBODY

pytestmark = [pytest.mark.model, pytest.mark.redis]


@pytest.fixture(autouse=True)
def whatever_it_measures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Accept any measurement, since other tests run meanwhile."""
    agrees(monkeypatch, True)


def agrees(monkeypatch: pytest.MonkeyPatch, answer: bool) -> None:
    def said(_: object) -> bool:
        return answer

    monkeypatch.setattr(examination, "_times_agree", said)
    monkeypatch.setattr(examination, "_are_plausible", said)
    monkeypatch.setattr(examination, "_on_cores", lambda: (0.0, 0.0))


def test_disturbed_machine_has_no_verdict(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    agrees(monkeypatch, False)
    monkeypatch.setattr(examination, "MAX_MEASUREMENTS", 1)
    assert main(["doctor", "--threads", "1"]) == 0
    assert "No verdict: other programs keep this machine busy" in capsys.readouterr().out


def test_doctor_measures_and_forecasts(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    asked = tmp_path / "questions.jsonl"
    asked.write_text(json.dumps({"messages": [{"role": "user", "content": "What is a list in Python?"}]}))
    flags = ["--threads", "1", "--questions", str(asked), "--draft-mode", "async", "--guess-ms", "2"]
    assert main(["doctor", *flags, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["step_s"][1] > 0
    assert found["guess_beside_s"] > 0
    assert 0 < found["acceptance"] <= 1
    assert found["n_tokens"] > 5
    assert list(found["rates"])[:3] == [NOBODY, INSIDE, BESIDE]
    assert len(found["rates"]) == 4
    assert found["chosen"] == BESIDE
    assert all(rate > 0 for rate in found["rates"].values())


def test_bad_questions_are_told_in_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    asked = tmp_path / "questions.jsonl"
    asked.write_text("what?")
    assert main(["doctor", "--threads", "1", "--questions", str(asked)]) == 1
    error = capsys.readouterr().err
    assert "--questions" in error
    assert "Traceback" not in error
