"""The program that starts duo again and again, with a reciting server in its place."""

from __future__ import annotations

import pytest

from benchmarks import starts
from tests.benchmarks.conftest import STUB


def test_starts_are_told_in_seconds(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    def reciting(*_: str) -> tuple[str, ...]:
        return STUB

    monkeypatch.setattr(starts, "duo", reciting)
    assert starts.main(["--rounds", "2"]) == 0
    table = capsys.readouterr().out.split("| seconds |")[1]
    rows = [line.strip("| ").split(" | ") for line in table.splitlines()[2:] if line]
    assert [row[0] for row in rows] == ["ready", "first word", "first word after ready"]
    ready, first, between = (float(row[1]) for row in rows)
    assert 0 < ready <= first
    assert between < first
