"""Weights brought into another type by llama.cpp's quantiser."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

import pytest

from server.llama import requantize
from server.llama.requantize import best_type, for_this_machine
from server.settings import BUNDLED_MODEL

INFO = "CPU : AVX2 = 1 | REPACK = 1 | "


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return Path(shutil.copy(BUNDLED_MODEL, tmp_path / "tiny.Q8_0.gguf"))


def test_type_is_chosen_by_features():
    assert best_type(INFO) == "Q4_0"
    assert best_type("CPU : SSE3 = 1 | REPACK = 1 | ") is None
    assert best_type("CPU : AVX2 = 1 | ") is None, "a build without kernels for several rows"


@pytest.mark.model
def test_weights_are_converted_once(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(requantize, "BEST_TYPES", (("REPACK = 1", "Q4_0"),))
    caplog.set_level(logging.INFO, "duo.model")
    made = for_this_machine(path, 1)
    assert made == path.with_name("tiny.Q4_0.gguf")
    assert made.stat().st_size < path.stat().st_size
    assert len([line for line in caplog.messages if "weights become Q4_0 once" in line]) == 1
    before, whole = made.stat().st_mtime_ns, made.stat().st_size
    assert for_this_machine(path, 1) == made
    assert made.stat().st_mtime_ns == before
    made.write_bytes(made.read_bytes()[:-1])
    assert for_this_machine(path, 1) == made
    assert made.stat().st_size == whole, "a truncated file is made again"
    assert {one.name for one in path.parent.iterdir()} == {path.name, made.name, ".lock"}


@pytest.mark.model
def test_file_that_cannot_be_converted_is_kept(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(requantize, "BEST_TYPES", (("REPACK = 1", "Q4_0"),))
    caplog.set_level(logging.INFO, "duo.model")
    path.write_bytes(path.read_bytes()[:1000])
    assert for_this_machine(path, 1) == path
    assert any("its weights stay as they are" in line for line in caplog.messages)


@pytest.mark.model
def test_file_of_the_best_type_is_kept(path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(requantize, "BEST_TYPES", (("REPACK = 1", "Q8_0"),))
    assert for_this_machine(path, 1) == path
