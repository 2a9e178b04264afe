"""What a drafter is told as its model."""

from __future__ import annotations

from pathlib import Path

import pytest

from drafters.drafter_settings import BUNDLED_MODEL, DEFAULT_MODEL, DrafterSettings
from server.flags import read


def test_bundled_model_is_found_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    assert read(DrafterSettings, ["--model", BUNDLED_MODEL.name]).model == BUNDLED_MODEL
    elsewhere = tmp_path / BUNDLED_MODEL.name
    assert read(DrafterSettings, ["--model", str(elsewhere)]).model == elsewhere
    elsewhere.touch()
    own = read(DrafterSettings, ["--model", BUNDLED_MODEL.name]).model
    assert own == Path(BUNDLED_MODEL.name), "a file of that name in the working directory comes first"


def test_default_drafts_for_the_default_model(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("DUO_DRAFTER_MODEL", raising=False)
    assert read(DrafterSettings, []).model == DEFAULT_MODEL
