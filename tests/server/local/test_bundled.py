"""Which bundled draft model drafts for a target."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from server.lead import vocabularies
from server.lead.vocabularies import card_of
from server.llama.options import Weights
from server.local import bundled
from server.local.bundled import draft_for
from server.settings import BUNDLED_DRAFT, BUNDLED_MODEL, LeadSettings
from server.speculation.wire.presence import VocabularyCard

pytestmark = pytest.mark.model
TINY = LeadSettings.model_validate({"model": BUNDLED_MODEL})


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def test_draft_with_the_vocabulary_drafts():
    assert draft_for(TINY) == BUNDLED_DRAFT


def test_asked_for_draft_wins_unread(tmp_path: Path):
    path = tmp_path / "absent.gguf"
    assert draft_for(TINY.model_copy(update={"draft_model": path})) == path


def test_no_draft_for_a_foreign_vocabulary(monkeypatch: pytest.MonkeyPatch):
    def foreign(path: Path, weights: Weights) -> VocabularyCard:
        own = card_of(path, weights)
        return replace(own, size=own.size + 1000) if path == BUNDLED_MODEL else own

    monkeypatch.setattr(bundled, "card_of", foreign)
    assert draft_for(TINY) is None


def test_card_is_made_once(monkeypatch: pytest.MonkeyPatch):
    made = card_of(BUNDLED_MODEL, Weights())
    monkeypatch.delattr(vocabularies, "LoadedModel")
    assert card_of(BUNDLED_MODEL, Weights()) == made
