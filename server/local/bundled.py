"""The draft models that come with duo, and which of them drafts for a target."""

from __future__ import annotations

from pathlib import Path

from server.lead.vocabularies import card_of
from server.llama.options import Weights
from server.settings import BUNDLED_DRAFT, LeadSettings
from server.speculation.wire.presence import misfit

SMOLLM2_DRAFT = BUNDLED_DRAFT.with_name("smollm2-draft.gguf")
DRAFTS = (SMOLLM2_DRAFT, BUNDLED_DRAFT)
"""Draft models of targets with different vocabularies."""


def draft_for(settings: LeadSettings) -> Path | None:
    """Return the draft model that was asked for, else the bundled one whose vocabulary is the target's.

    Returns:
        Its file; None if no bundled draft model speaks the target's vocabulary.

    Raises:
        StartupError: the target's file is missing, or llama.cpp cannot read it.
    """
    if settings.draft_model is not None:
        return settings.draft_model
    target = card_of(settings.model, settings.weights)
    fitting = (path for path in DRAFTS if path.is_file() and not misfit(target, card_of(path, Weights())))
    return next(fitting, None)
