"""Reciting servers in place of models."""

from __future__ import annotations

import sys

import pytest

STUB = (sys.executable, "-m", "tests.benchmarks.stub_server", "--port", "{port}")


@pytest.fixture
def reciting_duo(monkeypatch: pytest.MonkeyPatch) -> None:
    def reciting(*arguments: str, **options: object) -> tuple[str, ...]:
        return STUB

    for program in ("compare", "concurrent", "demo"):
        monkeypatch.setattr(f"benchmarks.{program}.duo", reciting)
