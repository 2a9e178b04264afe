"""Assemble the objects that a lead's routes use."""

from __future__ import annotations

import hashlib
import logging
import platform
import time
from collections.abc import Mapping
from contextlib import ExitStack, closing
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from server.api.background import BackgroundReplies
from server.api.prompt_work import PromptWork
from server.api.services import (
    DrafterHealth,
    DraftMode,
    Embedding,
    ExactnessHealth,
    GateHealth,
    Health,
    ModelCard,
    Part,
    Services,
)
from server.cache.named import NamedFiles
from server.engine.thread import EngineThread
from server.grammar.compiler import Compiler
from server.lead.recollection import of_logits, recall
from server.lead.tiers import MIB_SHIFT, file_digest, fingerprint
from server.llama.embedder import LlamaEmbedder
from server.llama.embedding_worker import EmbeddingWorker
from server.llama.library import LoadedModel
from server.llama.llamacpp import LlamaBackend
from server.replies.memory import MemoryStore
from server.replies.redis_store import LeadGroup, RedisStore
from server.replies.store import ReplyStore
from server.settings import LeadSettings
from server.speculation.speculator import Speculator
from server.speculation.wire.presence import names, unique_id
from server.text.detokenize import spelled
from server.text.fallback import Fallback, fallback_for
from server.text.guard import controls_of
from server.text.room import Room
from server.text.template import CHATML, ChatTemplate

logger = logging.getLogger("duo")

OF_REPLIES = (
    "temp",
    "top_k",
    "top_p",
    "min_p",
    "seed",
    "predict",
    "max_tokens",
    "exactness",
    "stable_width",
    "verify",
    "context_shift",
    "reasoning",
    "reasoning_budget",
    "reasoning_format",
    "verbose",
    "chat_template",
    "allow_remote_images",
)
"""Settings that a reply depends on; those of the model are in its fingerprint."""


def services_of(
    settings: LeadSettings,
    backend: LlamaBackend,
    engine: EngineThread,
    proposer: Speculator,
    draft_mode: DraftMode,
) -> Services:
    """Return the objects that the routes of this lead use."""
    vocabulary = backend.vocab
    card = _model_card(settings.name, settings.model, backend.model, backend.n_ctx)
    probed = recall("probe", of_logits(backend.options))
    exactness = ExactnessHealth(settings.exactness, settings.stable_width, probed)
    return Services(
        engine,
        vocabulary,
        template_of(settings, backend),
        replace(card, note=settings.note, aliases=settings.names[1:]),
        settings.sampling,
        lambda: _health_of(settings, engine, proposer, exactness, draft_mode),
        f"build-duo-{version('duo')}",
        grammars=Compiler(vocabulary),
        ask=engine.ask,
        slot_files=_slot_files(settings, backend),
        prompt_work=PromptWork(settings.max_queued),
        places=engine.places,
        seed=None if settings.seed < 0 else settings.seed,
        max_tokens=settings.predict if settings.predict > 0 else None,
        reasoning_budget=0 if settings.reasoning == "off" else settings.reasoning_budget,
        reasoning_format=settings.reasoning_format,
        template_variables=_template_variables(settings),
        context_shift=settings.context_shift,
        verbose=settings.verbose,
        frame_s=engine.gather_s if settings.smooth else 0.0,
        hidden=_hidden_parts(settings),
        adapters=[(one.path.name, one.scale) for one in settings.weights.adapters],
    )


def lead_group_of(settings: LeadSettings, backend: LlamaBackend) -> str:
    """Return a digest of everything that a reply depends on, except its request. Raises StartupError."""
    parts = (
        version("duo"),
        fingerprint(backend.options),
        backend.n_ctx,
        *(getattr(settings, name) for name in OF_REPLIES),
        settings.names,
        settings.mmproj and file_digest(settings.mmproj),
        hashlib.sha256((backend.chat_template or "").encode()).hexdigest(),
    )
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def store_of(settings: LeadSettings, background: BackgroundReplies, group: str) -> ReplyStore:
    """Return the store of replies: in the Redis of --redis, else in memory.

    The embedded Redis of duo up ends with the lead, so it would keep replies no longer than memory does.

    Args:
        settings: The lead's settings.
        background: The running replies, which other leads may cancel or take up through Redis.
        group: Result of lead_group_of(); leads of a pool with equal groups continue each other's replies.
    """
    if settings.redis is None:
        return MemoryStore()
    store = RedisStore(settings.redis, settings.pool, group=LeadGroup(group, unique_id(platform.node())))
    store.on_cancel = background.stop
    store.on_taken = background.abandon
    return store


def _hidden_parts(settings: LeadSettings) -> frozenset[Part]:
    parts: tuple[Part, ...] = ("slots", "metrics", "ui")
    return frozenset(part for part in parts if not getattr(settings, part))


def _template_variables(settings: LeadSettings) -> dict[str, Any]:
    """Return the default values of template variables, which requests may override."""
    return {} if settings.reasoning == "auto" else {"enable_thinking": settings.reasoning == "on"}


def template_of(settings: LeadSettings, backend: LlamaBackend) -> ChatTemplate:
    """Return the chat template. Raises StartupError if it is not Jinja, or if rendering it does not end."""
    vocabulary, own = backend.vocab, settings.chat_template
    named = CHATML if own == "chatml" else own or backend.chat_template or backend.tool_template
    template = ChatTemplate(
        named or _fallback_template(backend),
        with_tools=None if own else backend.tool_template,
        room=Room(backend.n_ctx, vocabulary.longest),
        bos=spelled(vocabulary, [vocabulary.bos]),
        eos=spelled(vocabulary, [vocabulary.eos]),
        controls=controls_of(vocabulary),
    )
    template.check()
    return template


def _fallback_template(backend: LlamaBackend) -> Fallback:
    """Return a template for a model without one, and let the template's end-of-turn token end replies."""
    vocabulary = backend.vocab
    found = fallback_for(controls_of(vocabulary))
    vocabulary.eog |= {vocabulary.added[mark] for mark in found.markers[-1:]}
    logger.warning(
        "the model's file has no chat template (typical of base models): prompts use the format of %s; "
        "another one can be given with --chat-template-file",
        found.name,
    )
    return found


def _health_of(
    settings: LeadSettings,
    engine: EngineThread,
    proposer: Speculator,
    exactness: ExactnessHealth,
    draft_mode: DraftMode,
) -> Health:
    records, reason = proposer.drafters(), engine.stuck()
    return Health(
        status="stuck" if reason else "draining" if engine.places.closed else "ok",
        reason=reason,
        slots_total=settings.parallel,
        slots_busy=engine.engine.n_active,
        queued=engine.engine.n_waiting,
        step_python_us=engine.engine.meter.overhead_us(),
        drafters=[
            DrafterHealth(
                record.presence.id,
                record.presence.model,
                "refused" if record.refusal else "accepted",
                record.refusal,
                dict(record.counts),
                name,
                round(1e3 * record.guess_s, 3),
                record.rests or None,
                record.presence.kind,
            )
            for record, name in zip(records, names([one.presence for one in records]), strict=True)
        ],
        exactness=exactness,
        draft_mode=draft_mode,
        n_decodes=engine.engine.meter.n_decodes,
        n_decoding=engine.engine.meter.n_decoding,
        cells=engine.engine.meter.cells,
        gate=GateHealth(
            round(proposer.ledger.rates.throughput.value, 1),
            _in_milliseconds(proposer.ledger.times.table()),
            proposer.before.width if proposer.before.is_shape else 0,
            _in_milliseconds(proposer.ledger.times.shapes.steady),
        ),
    )


def _in_milliseconds(seconds: Mapping[int, float]) -> dict[str, float]:
    return {str(rows): round(value * 1e3, 3) for rows, value in seconds.items()}


def embedding_by(stack: ExitStack, embedder: LlamaEmbedder | None, lead: ModelCard) -> Embedding | None:
    """Return the embedding service, None without an embedder.

    Args:
        stack: Ends the service's thread when it closes.
        embedder: The model.
        lead: The card of the generating model.
    """
    if embedder is None:
        return None
    worker = stack.enter_context(closing(EmbeddingWorker(embedder)))
    if embedder.path.name == lead.file:
        return Embedding(worker, lead)
    return Embedding(worker, _model_card(embedder.name, embedder.path, embedder.model, embedder.n_ctx))


def _model_card(id: str, path: Path, model: LoadedModel, n_ctx: int) -> ModelCard:
    return ModelCard(
        id,
        int(time.time()),
        n_ctx,
        model.n_params,
        model.description,
        file=path.name,
        n_vocab=model.n_vocab,
        n_bytes=model.n_bytes,
        quantization=model.quantization,
    )


def _slot_files(settings: LeadSettings, backend: LlamaBackend) -> NamedFiles | None:
    if settings.cache_dir is None:
        return None
    return NamedFiles(
        settings.cache_dir / "slots",
        budget_bytes=settings.cache_disk << MIB_SHIFT,
        fingerprint=fingerprint(backend.options),
    )
