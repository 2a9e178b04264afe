"""Reciting servers in place of models."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

STUB = (sys.executable, "-m", "tests.benchmarks.stub_server", "--port", "{port}")


@pytest.fixture
def llama_server(tmp_path: Path) -> Path:
    """Return an executable that takes llama-server's flags."""
    binary = tmp_path / "llama-server"
    binary.write_text(f'#!/bin/sh\nexec {sys.executable} -m tests.benchmarks.stub_server "$@"\n')
    binary.chmod(0o755)
    return binary


@pytest.fixture
def reciting_duo(monkeypatch: pytest.MonkeyPatch) -> None:
    def reciting(*arguments: str, **options: object) -> tuple[str, ...]:
        return STUB

    monkeypatch.setattr("benchmarks.compare.duo", reciting)
