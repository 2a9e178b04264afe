"""Measuring steps at start, and remembering what was measured."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

import pytest

from server.lead import calibration
from server.lead.calibration import WIDTHS, measure, on_own_thread, remembered
from server.lead.recollection import keep, of_model, recall
from server.llama.options import LlamaOptions
from server.llama.shapes import CONTEXT
from tests.fake_backend import FakeBackend

pytestmark = pytest.mark.usefixtures("still_clock")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "duo"


def test_every_width_is_measured_cleanly():
    backend = FakeBackend(n_batch=CONTEXT, step_s=0.001)
    found = measure(backend, 12)
    assert sorted(found) == sorted(width for width in WIDTHS if width <= 12)
    assert all(seconds > 0 for seconds in found.values())
    assert backend.n_used == 0


def test_small_batches_are_measured_too():
    backend = FakeBackend(n_batch=CONTEXT // 2 + 1)
    assert sorted(measure(backend, 4)) == [1, 2, 3, 4]
    assert backend.n_used == 0


def test_wider_steps_take_longer():
    found = measure(FakeBackend(n_batch=CONTEXT, step_s=0.001, row_s=0.001), 8)
    assert found[8] > 2 * found[1]


def test_slow_model_is_measured_once():
    backend = FakeBackend(n_batch=CONTEXT, step_s=0.02)
    found = measure(backend, 32, budget_s=0.05)
    assert set(found) <= set(WIDTHS[:4])
    assert 1 in found


def test_unforgetting_model_returns_to_start():
    backend = FakeBackend(n_batch=CONTEXT, can_trim=False, step_s=0.001, row_s=0.001)
    found = measure(backend, 8)
    assert found[8] > 2 * found[1]
    assert backend.n_used == 0


def test_model_without_spare_sequence_is_unmeasured():
    assert measure(FakeBackend(can_trim=False, n_seqs=1), 8) == {}
    assert measure(FakeBackend(can_trim=False, can_copy=False), 8) == {}


def test_measurements_are_remembered(cache: Path):
    what = ("model", 1)
    first = remembered(FakeBackend(n_batch=CONTEXT, step_s=0.002), 8, what)
    again = FakeBackend(n_batch=CONTEXT, step_s=0.002)
    assert remembered(again, 8, what) == pytest.approx(first)
    assert max(again.widths[1:]) <= 4, "a short look"
    assert len(list(cache.iterdir())) == 1


def test_busy_measurement_is_repeated():
    what = ("model", 3)
    slow = remembered(FakeBackend(n_batch=CONTEXT, step_s=0.02), 8, what)
    fast = remembered(FakeBackend(n_batch=CONTEXT, step_s=0.002), 8, what)
    assert fast[8] < 0.5 * slow[8]


def test_a_broken_memory_is_measured_anew(cache: Path):
    what = ("model", 2)
    keep("steps", [*what, 4], [1, 2, 3])
    assert set(remembered(FakeBackend(n_batch=CONTEXT), 4, what)) == {1, 2, 3, 4}
    [path] = cache.iterdir()
    path.write_text("{")
    assert recall("steps", [*what, 4]) is None


def test_unwritable_directory_is_no_failure(cache: Path):
    cache.write_text("a file where the directory should be")
    keep("steps", ["x"], {})
    assert recall("steps", ["x"]) is None


def test_another_model_file_is_another_memory(tmp_path: Path):
    model = tmp_path / "m.gguf"
    model.write_bytes(b"GGUF")
    options = LlamaOptions(model, 64, 1, n_threads=2)
    before = of_model(options)
    model.write_bytes(b"GGUF!")
    assert of_model(options) != before


def test_homeless_user_remembers_nothing(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture):
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", homeless)
    caplog.set_level("INFO")
    keep("steps", ["a model"], {"1": 1.0})
    assert "cannot keep steps for the next start: Could not determine home directory." in caplog.text
    assert recall("steps", ["a model"]) is None


def test_waiting_start_says_so(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture):
    assert on_own_thread(lambda: 7) == 7
    assert not caplog.records
    said = threading.Event()

    def wait_for_word() -> int:
        said.wait()
        return 8

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.set()

    listener = Listener()
    calibration.logger.addHandler(listener)
    monkeypatch.setattr(calibration, "SILENT_S", 0.0)
    try:
        assert on_own_thread(wait_for_word) == 8
    finally:
        said.set()
        calibration.logger.removeHandler(listener)
    assert "GGML_CUDA_DISABLE_GRAPHS=1" in caplog.text
