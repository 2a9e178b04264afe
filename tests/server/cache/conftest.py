"""Leads and folders of a test, and what was warned of."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.server.cache.folder import Folder
from tests.server.cache.lead import Make, leads


@pytest.fixture
def make() -> Iterator[Make]:
    with leads() as one:
        yield one


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def folder(path: Path) -> Folder:
    return Folder(path)


@pytest.fixture
def warned(caplog: pytest.LogCaptureFixture) -> Callable[[], int]:
    """Return a function that counts the warnings so far."""
    caplog.set_level(logging.WARNING, "duo.cache")
    return lambda: sum(r.levelno >= logging.WARNING for r in caplog.records)
