"""The models of a lead, loaded as its settings say."""

from __future__ import annotations

import logging
from contextlib import ExitStack, closing
from pathlib import Path

from server.errors import StartupError
from server.flags import n_cores
from server.llama.llamacpp import LlamaBackend, LlamaOptions, default_cells
from server.settings import LeadSettings
from server.speculation.draft_model import DraftModel
from server.speculation.presence import misfit, vocabulary_card

logger = logging.getLogger("duo.lead")

MAX_SEQS = 256  # of llama.cpp


def load_target(settings: LeadSettings, n_threads: int) -> LlamaBackend:
    """The target model with room for all slots. Raises StartupError."""
    return LlamaBackend(
        LlamaOptions(
            model_path=settings.model,
            n_cells=settings.ctx_size or default_cells(settings.model, settings.parallel),
            n_seqs=n_places(settings) * leaves_of(settings),  # see docs/adr/0003
            n_threads=n_threads,
            n_gpu_layers=settings.gpu_layers,
        )
    )


def load_draft(
    stack: ExitStack, settings: LeadSettings, path: Path, target: LlamaBackend
) -> DraftModel | None:
    """The model that drafts between steps; None if the bundled one, which nobody asked for, does not fit.
    Raises StartupError if another one does not."""
    draft = LlamaBackend(
        LlamaOptions(
            model_path=path,
            n_cells=default_cells(path, settings.parallel),
            n_seqs=settings.parallel,
            n_threads=settings.draft_threads or n_cores(),
            n_gpu_layers=settings.gpu_layers,
        )
    )
    stack.enter_context(closing(draft))
    if reason := misfit(vocabulary_card(target.vocab), vocabulary_card(draft.vocab)):
        if settings.draft_model is None:
            logger.info("  draft    none: the bundled draft model does not fit (%s)", reason)
            return None
        raise StartupError(f"{path} cannot draft for {settings.model}: {reason}")
    logger.info("  draft    %s (%s), in this process", draft.name, draft.description)
    return DraftModel(draft, distributions=settings.verify == "rejection")


def leaves_of(settings: LeadSettings) -> int:
    """Of one session's tree, each of which needs a sequence."""
    return max(1, min(settings.leaves, MAX_SEQS // n_places(settings)))


def n_places(settings: LeadSettings) -> int:
    """Conversations in the KV cache: more than run at once, so that a side request evicts none."""
    return settings.parallel + max(1, settings.parallel // 2)


def describe(backend: LlamaBackend, n_threads: int) -> str:
    return (
        f"{backend.name} ({backend.description}, {backend.n_params / 1e6:.1f}M parameters, "
        f"context {backend.n_ctx}, {n_threads} threads)"
    )
