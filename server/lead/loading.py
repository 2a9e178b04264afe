"""Load the models of a lead by its settings."""

from __future__ import annotations

import logging
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from server.errors import StartupError
from server.flags import n_cores
from server.lead.calibration import on_own_thread, steady_widths
from server.lead.default_model import with_default_model
from server.lead.heads import assistant_of, head_of, load_head, with_head
from server.lead.seeing import with_projector
from server.lead.vocabularies import card_of
from server.llama.assistant import Assistant
from server.llama.backend import Backend, Batch, PredictionBlock, ReadsRows
from server.llama.cuda_graphs import forgo_graphs_of_many, forgo_graphs_on_host
from server.llama.embedder import MAX_INPUT_TOKENS, LlamaEmbedder, ranks
from server.llama.embedding import Pooling
from server.llama.hub import fetch, source
from server.llama.library import computes_elsewhere, default_cells
from server.llama.llamacpp import ChooseAttention, LlamaBackend
from server.llama.model_settings import downloaded, found
from server.llama.mtp import LlamaBlock
from server.llama.options import MAX_SEQS, LlamaOptions
from server.llama.parts import parts
from server.llama.with_block import WithBlock
from server.settings import LeadSettings
from server.speculation.sources.block_draft import BlockDraft
from server.speculation.sources.draft_model import DraftModel
from server.speculation.sources.inline import InlineModel
from server.speculation.wire.presence import mismatch

logger = logging.getLogger("duo.lead")

WARM_UP_ROWS = 32  # rows of the first warm-up decode, like a short prompt; the second has one, like a step

S = TypeVar("S", bound=LeadSettings)


def prepared(settings: S) -> S:
    """Return the settings with paths in place of repositories, and with the chat template's text.

    Fetches missing models, the default one too. Raises StartupError.
    """
    settings = with_default_model(settings)
    fetched = found(settings)
    settings = downloaded(settings, fetched)
    changes: dict[str, object] = {}
    if settings.hf_repo_draft is not None:
        if settings.draft_model is not None:
            raise StartupError("--draft-model and --hf-repo-draft both name a model: give one of them")
        path = fetch(source(settings.hf_repo_draft, flag="--hf-repo-draft"), offline=settings.offline)
        changes |= {"draft_model": path, "hf_repo_draft": None}
    if settings.chat_template_file is not None:
        if settings.chat_template is not None:
            raise StartupError("--chat-template and --chat-template-file both name one: give one of them")
        template = settings.chat_template_file
        try:
            text = template.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            why = f"--chat-template-file: {template} cannot be read as text ({error})"
            raise StartupError(why) from error
        changes |= {"chat_template": text, "chat_template_file": None}
    settings = settings.model_copy(update=changes)
    if fetched is not None and fetched.heads:
        settings = with_head(settings, fetched)
    settings = with_projector(settings, fetched)
    if head_of(settings) or assistant_of(settings):  # elsewhere it would have nothing to guess from
        none = {"draft_model": None, "draft_mode": "auto"}
        settings = settings.model_copy(update={"draft_mode": "sync"} if settings.draft_max else none)
    return settings


def load_target(
    settings: LeadSettings, n_threads: int, attention: ChooseAttention | None = None
) -> LlamaBackend:
    """Load the target model with room for all slots.

    Args:
        settings: The lead's settings.
        n_threads: CPU threads of the model.
        attention: Chooses flash attention, as in LlamaBackend.

    Raises:
        StartupError: The model cannot be loaded, or the settings do not fit each other.
    """
    for flag, n_rows in (("batch", settings.batch_size), ("ubatch", settings.ubatch_size)):
        if 0 < n_rows < settings.stable_width:
            width = settings.stable_width
            raise StartupError(f"--stable-width {width} needs at least --{flag}-size {width}")
    path, most, head = settings.model, settings.parallel, head_of(settings)
    if settings.batch_size < most:
        raise StartupError(f"--parallel {most} needs at least --batch-size {most}: a row for each reply")
    options = settings.options(
        path,
        n_cells=settings.ctx_size or default_cells(path, most, settings.weights, settings.rope),
        n_seqs=n_places(settings) * _seqs_each(settings),  # see docs/adr/0003
        n_threads=n_threads,
    )
    n_streams = 0 if settings.kv_unified else most
    options = replace(options, n_streams=n_streams, n_tail=settings.draft_max, head=head)
    if settings.mmproj:  # some models must evaluate all rows of a picture at once
        options = replace(options, n_ubatch=settings.ubatch_size or settings.batch_size)
    forgo_graphs_on_host(settings.weights)
    if computes_elsewhere(settings.weights):
        forgo_graphs_of_many(most)
    backend = LlamaBackend(options, attention)
    if not settings.kv_unified:
        backend.n_ctx = min(backend.n_ctx, backend.n_cells // most)
    return backend


def for_browsers(settings: LeadSettings, draft: Path | None) -> Path | None:
    """Return the draft model if browsers can draft with it, else None.

    They can if it is a single file, neither a head nor an assistant, and if verification is exact.
    """
    if draft is None or settings.verify != "exact" or len(parts(draft)) > 1:
        return None
    return None if head_of(settings) or assistant_of(settings) else draft


def drafting_inside(
    stack: ExitStack,
    settings: LeadSettings,
    draft: Path | None,
    target: LlamaBackend,
    base: ReadsRows | None = None,
) -> tuple[ReadsRows, InlineModel | None]:
    """Return the target wrapped for the engine, and the model that drafts in this process, if any.

    The target's prediction block drafts, unless the settings name a draft model, a head or an assistant.

    Args:
        stack: Closes the opened models.
        settings: The lead's settings.
        draft: The draft model of the settings, or a default.
        target: The target.
        base: The target, wrapped if it reads pictures (GridPositions); None: the target itself.

    Raises:
        StartupError: A model that the settings name cannot be loaded, or does not fit.
    """
    base, block = base or target, _load_block(stack, settings, draft, target)
    if block is None:
        return base, load_draft(stack, settings, draft, target) if draft else None
    model = WithBlock(base, block)
    return model, BlockDraft(model, most=settings.mtp_max, distributions=settings.verify == "rejection")


def _load_block(
    stack: ExitStack, settings: LeadSettings, draft: Path | None, target: LlamaBackend
) -> PredictionBlock | None:
    """Return the head, assistant or block that drafts from the target's hidden rows, None if there is none.

    A head or assistant in the settings has priority over the prediction block in the target's file. Raises
    StartupError if it cannot be used.
    """
    if head := target.options.head:
        return load_head(stack, head, target, settings.mtp_max)
    if draft and assistant_of(settings) == draft:
        assistant = stack.enter_context(closing(Assistant(target, draft, settings.draft_weights)))
        logger.info("  draft    %s, %s", assistant.what, assistant.how)
        return assistant
    asked = draft and (settings.draft_model is not None or settings.draft_mode == "sync")
    if not target.model.n_blocks or asked:
        return None
    try:
        block = stack.enter_context(closing(LlamaBlock(target, settings.mtp_max)))
    except StartupError as error:
        logger.warning("the prediction block in %s is not used: %s", target.name, error.message)
        return None
    logger.info("  draft    %s, %s", block.what, block.how)
    return block


def load_draft(stack: ExitStack, settings: LeadSettings, path: Path, target: LlamaBackend) -> DraftModel:
    """Load the model at `path` to draft between steps; `stack` closes it.

    Raises StartupError if it cannot be loaded, or if its vocabulary differs from the target's.
    """
    draft = LlamaBackend(
        LlamaOptions(
            model_path=path,
            n_cells=default_cells(path, settings.parallel),
            n_seqs=settings.parallel,
            n_threads=settings.draft_threads or n_cores(),
            weights=settings.draft_weights,
        )
    )
    stack.enter_context(closing(draft))
    cards = card_of(settings.model, settings.weights), card_of(path, settings.draft_weights)
    if reason := mismatch(*cards):
        raise StartupError(
            f"{path} cannot draft for {settings.model}: {reason}; as a drafter of its own it can: "
            f"duo draft --model {path} --translate {settings.model}"
        )
    logger.info("  draft    %s (%s), in this process", draft.name, draft.description)
    one_shape = bool(on_own_thread(steady_widths, draft, 2))
    return DraftModel(draft, distributions=settings.verify == "rejection", one_shape=one_shape)


def load_embedder(stack: ExitStack, settings: LeadSettings, target: LlamaBackend) -> LlamaEmbedder | None:
    """Return the embedder: another model, or the target's weights in a separate context.

    Returns:
        The embedder; None if the target cannot embed, or if the settings do not ask for it.

    Raises:
        StartupError: The other model cannot embed.
    """
    other = settings.embedding_model
    if other is None and not settings.embeddings:
        return None
    try:
        embedder = _embedder_beside(stack, settings, target, other, settings.pooling)
    except StartupError as error:
        if other is not None:
            raise
        logger.info("  embeds   nothing: %s", error.message)
        return None
    what = f"{embedder.name}, {embedder.n_embd} dimensions, up to {embedder.n_ctx} tokens"
    logger.info("  embeds   %s", what)
    return embedder


def load_ranker(stack: ExitStack, settings: LeadSettings, target: LlamaBackend) -> LlamaEmbedder | None:
    """Return the ranker: another model, or the target if the settings or the model's file say so, else None.

    Raises StartupError.
    """
    other = settings.rerank_model
    if other is None and not settings.reranking and not ranks(target.model):
        return None
    ranker = _embedder_beside(stack, settings, target, other, "rank")
    logger.info("  ranks    %s, up to %d tokens", ranker.name, ranker.n_ctx)
    return ranker


def _embedder_beside(
    stack: ExitStack,
    settings: LeadSettings,
    target: LlamaBackend,
    other: Path | None,
    pooling: Pooling | None,
) -> LlamaEmbedder:
    """Return an embedder that uses at most half of the threads, so that replies continue meanwhile.

    It runs the model in the file `other`, or the target's weights if `other` is None.
    """
    n_threads = max(1, max(target.options.n_threads, target.options.n_threads_batch) // 2)
    if other is not None:
        options = LlamaOptions(
            other, MAX_INPUT_TOKENS, 1, n_threads=n_threads, weights=settings.draft_weights
        )
    else:
        attention = settings.flash_attn  # all rows of a text are evaluated at once
        options = replace(
            target.options, n_cells=MAX_INPUT_TOKENS, n_threads=n_threads, flash_attention=attention
        )
    model = target.model if other is None else None
    return stack.enter_context(closing(LlamaEmbedder(options, pooling=pooling, model=model)))


def leaves_of(settings: LeadSettings, backend: Backend) -> int:
    """Return the maximum leaves of a session's tree of guesses: 1 if sequences cannot share cells."""
    return _seqs_each(settings) if backend.can_trim and backend.can_share else 1


def _seqs_each(settings: LeadSettings) -> int:
    """Return the sequences per conversation: --leaves, or fewer so that all conversations fit MAX_SEQS."""
    return max(1, min(settings.leaves, MAX_SEQS // n_places(settings)))


def n_places(settings: LeadSettings) -> int:
    """Return how many conversations the KV cache has sequences for.

    There is one for each slot. If conversations share cells, half as many are added, but at least one, so
    that a side request evicts no conversation.
    """
    spare = max(1, settings.parallel // 2) if settings.kv_unified else 0
    return settings.parallel + spare


def warm_up(backend: Backend, inline: InlineModel | None) -> None:
    """Decode some tokens and discard them, so that no request waits for slow first decodes.

    Call it on the thread that will decode.

    Args:
        backend: The target.
        inline: The model that drafts in the lead; it is warmed up too.
    """
    for n_rows in (min(WARM_UP_ROWS, backend.n_batch), 1):
        rows = Batch()
        rows.extend(0, 0, [0] * n_rows, 1)
        backend.decode(rows)
        backend.trim(0, 0)
    if inline is not None:
        inline.rehearse()
