"""The program that compares texts with plain llama.cpp's, with the toy pair."""

from __future__ import annotations

import pytest

from benchmarks import equal


@pytest.mark.model
def test_toys_have_equal_texts(capsys: pytest.CaptureFixture[str]):
    assert equal.main(["--prompts", "12", "--max-tokens", "24"]) == 0
    rows = capsys.readouterr().out.split("| same text |")[1]
    assert rows.count(" | 12 of 12 |") == len(equal.HOW)
