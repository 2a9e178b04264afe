"""Draft models that come with duo, and the choice of one for a target."""

from __future__ import annotations

from pathlib import Path

from server.lead.vocabularies import card_of
from server.llama.options import Weights
from server.local.placement import Machine
from server.settings import BUNDLED_DRAFT, LeadSettings
from server.speculation.wire.presence import mismatch

SMOLLM2_DRAFT = BUNDLED_DRAFT.with_name("smollm2-draft.gguf")
SMOLLM2_SMALL = BUNDLED_DRAFT.with_name("smollm2-draft-small.gguf")
DRAFTS = (SMOLLM2_DRAFT, SMOLLM2_SMALL, BUNDLED_DRAFT)
"""Draft models. Among those with equal vocabularies, the one that agrees with the target most comes first."""
QUICKEST_FIRST = (SMOLLM2_SMALL, SMOLLM2_DRAFT, BUNDLED_DRAFT)
"""The same models, the quickest first: for a target that shares few cores with its draft model.

On two AVX-512 cores, a step of SmolLM2 as Q4_0 takes 6.1 ms, one with four rows 14.3 ms. A guess takes
0.24 ms with the small draft model, 1.1 ms with the other. At these times, the best number of guesses reaches
1.10 times the undrafted speed with the small model, 1.03 times with the other, although fewer guesses of the
small one are right (0.56 against 0.69).
"""


def draft_for(settings: LeadSettings, machine: Machine) -> Path | None:
    """Return the draft model that the settings name, else a bundled one with the target's vocabulary.

    Args:
        settings: Settings of the lead.
        machine: Where target and draft model run.

    Returns:
        Its file; None if no bundled draft model has the target's vocabulary.

    Raises:
        StartupError: The target's file is missing, or llama.cpp cannot read it.
    """
    if settings.draft_model is not None:
        return settings.draft_model
    target = card_of(settings.model, settings.weights)
    drafts = QUICKEST_FIRST if machine.has_few_cores and not settings.rpc else DRAFTS
    fitting = (path for path in drafts if path.is_file() and not mismatch(target, card_of(path, Weights())))
    return next(fitting, None)
