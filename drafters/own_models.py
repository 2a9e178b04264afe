"""Load what guesses for a drafter's own model, and check that it fits."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

from drafters.cascade import MOST_OWN, Cascade
from drafters.drafter_settings import DrafterSettings
from drafters.own_lookup import OwnLookup
from server.drafting.own_drafts import OwnDrafts
from server.errors import StartupError
from server.llama.backend import Backend
from server.llama.eagle3 import LlamaHead
from server.llama.llamacpp import LlamaBackend
from server.llama.mtp import LlamaBlock
from server.llama.options import Rope
from server.llama.shapes import measure
from server.llama.tensors import EAGLE3, architecture
from server.llama.with_block import WithBlock
from server.speculation.sources.block_draft import BlockDraft
from server.speculation.sources.draft_model import DraftModel
from server.speculation.sources.inline import InlineModel
from server.speculation.wire.presence import misfit, vocabulary_card

logger = logging.getLogger("duo.drafter")


def head_of(settings: DrafterSettings) -> Path | None:
    """Return the file of the EAGLE-3 head that drafts for the draft model, if any. Raises StartupError."""
    path = settings.draft_model
    return path if path and architecture(path) == EAGLE3 else None


def with_own_drafts(
    settings: DrafterSettings, stack: ExitStack, model: LlamaBackend
) -> tuple[Backend, OwnDrafts]:
    """Return the backend of the draft model, and what guesses for it.

    Args:
        settings: The drafter's.
        stack: Closes what is opened.
        model: The draft model; its options name the head if there is one.

    Raises:
        StartupError: What was asked for cannot be loaded, or does not fit.
    """
    backend, guesser = _own_guesser(settings, stack, model)
    if guesser is None:
        return model, OwnDrafts()
    if not model.can_trim:
        raise StartupError(
            f"{model.name} takes no tokens back, so it gets no drafts: leave out --draft-model and --lookup"
        )
    shapes = measure(model, (1, 1 + MOST_OWN))
    guesser.rehearse()
    return backend, Cascade(guesser, shapes.steady, one_shape=shapes.padding_pays)


def _own_guesser(
    settings: DrafterSettings, stack: ExitStack, model: LlamaBackend
) -> tuple[Backend, InlineModel | None]:
    if head := head_of(settings):
        return _with_block(stack, model, lambda: LlamaHead(model, head))
    if settings.draft_model is not None:
        return model, _smaller_model(settings, stack, settings.draft_model, model)
    if model.model.n_blocks:
        return _with_block(stack, model, lambda: LlamaBlock(model, MOST_OWN))
    return model, OwnLookup() if settings.lookup else None


def _with_block(
    stack: ExitStack, model: LlamaBackend, load: Callable[[], LlamaHead | LlamaBlock]
) -> tuple[Backend, InlineModel]:
    """Return the model joined with a block or head, and the source that guesses with that."""
    block = stack.enter_context(closing(load()))
    if isinstance(block, LlamaHead) and (reason := misfit(*map(vocabulary_card, (model.vocab, block.vocab)))):
        raise StartupError(f"{block.what} cannot draft for {model.name}: {reason}")
    logger.info("own drafts by %s", block.what)
    with_block = WithBlock(model, block)
    return with_block, BlockDraft(with_block, most=MOST_OWN)


def _smaller_model(
    settings: DrafterSettings, stack: ExitStack, path: Path, model: LlamaBackend
) -> DraftModel:
    options = replace(
        model.options,
        model_path=path,
        n_seqs=settings.sequences,
        weights=replace(settings.weights, rpc=(), mtp=False, overrides=(), adapters=()),
        rope=Rope(),
        head=None,
    )
    smaller = stack.enter_context(closing(LlamaBackend(options)))
    if reason := misfit(vocabulary_card(model.vocab), vocabulary_card(smaller.vocab)):
        raise StartupError(f"{path} cannot draft for {settings.model}: {reason}")
    logger.info("own drafts by %s (%s)", smaller.name, smaller.description)
    return DraftModel(smaller, one_shape=measure(smaller, (1, 2)).change_costs)
