"""Which bundled draft model drafts for a target."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from server.lead import vocabularies
from server.lead.vocabularies import card_of
from server.llama.options import Weights
from server.local import bundled
from server.local.bundled import DRAFTS, QUICKEST_FIRST, SMOLLM2_DRAFT, SMOLLM2_SMALL, draft_for
from server.local.placement import Machine
from server.settings import BUNDLED_DRAFT, BUNDLED_MODEL, LeadSettings
from server.speculation.wire.presence import VocabularyCard

pytestmark = pytest.mark.model
MANY, FEW, ONE_GPU = Machine(16), Machine(2), Machine(2, (1 << 34,))
TINY = LeadSettings.model_validate({"model": BUNDLED_MODEL})


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def test_draft_with_the_vocabulary_drafts():
    assert draft_for(TINY, MANY) == BUNDLED_DRAFT


def test_asked_for_draft_wins_unread(tmp_path: Path):
    path = tmp_path / "absent.gguf"
    assert draft_for(TINY.model_copy(update={"draft_model": path}), MANY) == path


def test_no_draft_for_a_foreign_vocabulary(monkeypatch: pytest.MonkeyPatch):
    def foreign(path: Path, weights: Weights) -> VocabularyCard:
        own = card_of(path, weights)
        return replace(own, size=own.size + 1000) if path == BUNDLED_MODEL else own

    monkeypatch.setattr(bundled, "card_of", foreign)
    assert draft_for(TINY, MANY) is None


def test_card_is_made_once(monkeypatch: pytest.MonkeyPatch):
    made = card_of(BUNDLED_MODEL, Weights())
    monkeypatch.delattr(vocabularies, "LoadedModel")
    assert card_of(BUNDLED_MODEL, Weights()) == made


def test_bundled_drafts_are_all_there():
    assert all(path.is_file() and path.stat().st_size < 16_000_000 for path in DRAFTS)
    assert set(DRAFTS) == set(QUICKEST_FIRST)


@pytest.mark.parametrize(
    ("machine", "wanted"), [(MANY, SMOLLM2_DRAFT), (ONE_GPU, SMOLLM2_DRAFT), (FEW, SMOLLM2_SMALL)]
)
def test_few_cores_get_the_quickest_draft(machine: Machine, wanted: Path):
    asked = TINY.model_copy(update={"model": SMOLLM2_DRAFT})  # it has its target's vocabulary
    assert draft_for(asked, machine) == wanted
