"""Create the kind of drafter that the settings name."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

from drafters.browser_link import BrowserLink
from drafters.drafter import Drafter
from drafters.drafter_settings import DrafterSettings
from drafters.engine_client import EngineClient, HttpEngine
from drafters.engine_dialects import EngineError
from drafters.engine_drafter import EngineDrafter, dialect_of, slots_of
from drafters.head_drafter import HeadDrafter, open_head
from drafters.lookup_drafter import LookupDrafter
from drafters.replay import replay_drafter
from drafters.translating import TranslatingDrafter
from server.drafting.model_drafter import ModelDrafter
from server.errors import StartupError
from server.llama.backend import RowsCard
from server.llama.devices import use_no_gpu
from server.llama.library import MOST_CTX, default_cells
from server.llama.llamacpp import LlamaBackend
from server.llama.model_settings import downloaded
from server.llama.options import LlamaOptions, Weights
from server.llama.shapes import UNKNOWN, measure
from server.speculation.wire.presence import VocabularyCard, vocabulary_card

# Assumed number of full conversations that the KV cache has room for without --ctx-size. Twice: the cache
# takes twice the memory.
MODEL_CAPACITY = 4
BROWSER_CAPACITY = 1  # sessions: a browser holds one text; alternating texts would each be read again
OTHER_CAPACITY = 256  # assumed sessions of a drafter without a model. Half: leads look elsewhere earlier
# Maximum rows of a timed decode: a path and two branches. Each further row is assumed to cost as much as the
# second and third do. Half (one row): further rows seem free; twice: a start measures for twice as long.
MAX_DRAFT_ROWS = 3
_STDOUT, _STDERR = 1, 2
_CELLS = 32  # enough to open a model for its vocabulary

# A new kind is its module, its line here, and the import.
WITHOUT_MODEL: dict[str, Callable[[DrafterSettings], Drafter]] = {
    "lookup": lambda settings: LookupDrafter(),
    "replay": replay_drafter,
}


@dataclass(frozen=True, slots=True)
class Kind:
    """A drafter, and the properties that its process announces."""

    drafter: Drafter
    name: str
    vocabulary: VocabularyCard
    capacity: int  # sessions at once
    host: str = ""  # the machine that it computes on; empty: this machine
    browser: BrowserLink | None = None  # the link whose messages must be read
    rows: RowsCard | None = None  # hidden rows of the target that it needs


def assemble(settings: DrafterSettings, stack: ExitStack) -> Kind:
    """Return the drafter that the settings name; `stack` will close its resources. Raises StartupError."""
    if settings.head is not None:
        return _head_kind(settings, settings.head, stack)
    if found := (WITH_RESOURCES | BY_LEADS).get(settings.kind):
        return found(settings, stack)
    make = WITHOUT_MODEL.get(settings.kind)
    if make is None:
        known = ", ".join([*WITH_RESOURCES, *WITHOUT_MODEL])
        raise StartupError(f"no kind of drafter is called {settings.kind!r}; --kind takes one of: {known}")
    return Kind(
        make(settings), settings.kind, _card_of_file(settings.vocab_from), settings.capacity or OTHER_CAPACITY
    )


def _model_kind(settings: DrafterSettings, stack: ExitStack) -> Kind:
    if settings.gpu_layers == 0:
        use_no_gpu()
    capacity = min(settings.capacity or MODEL_CAPACITY, settings.sequences)
    path = downloaded(settings).model
    options = settings.options(
        path,
        n_cells=settings.ctx_size or default_cells(path, capacity, settings.weights, settings.rope),
        n_seqs=settings.sequences + settings.branches,
        n_threads=settings.threads,
    )
    backend = stack.enter_context(closing(LlamaBackend(options)))
    n_branches = 0 if settings.translate else settings.branches
    shapes = measure(backend, range(1, MAX_DRAFT_ROWS + 1)) if n_branches else UNKNOWN
    drafter = ModelDrafter(backend, path_min=settings.path_min, n_branches=n_branches, shapes=shapes)
    if settings.translate is None:
        return Kind(drafter, backend.name, vocabulary_card(backend.vocab), capacity)
    target = stack.enter_context(closing(_open_vocabulary(settings.translate))).vocab
    translating = TranslatingDrafter(drafter, backend.vocab, target)
    return Kind(translating, backend.name, vocabulary_card(target), capacity)


def _head_kind(settings: DrafterSettings, path: Path, stack: ExitStack) -> Kind:
    model = stack.enter_context(closing(_open_vocabulary(settings.vocab_from)))
    capacity = min(settings.capacity or MODEL_CAPACITY, settings.sequences)
    options = settings.options(
        path,
        n_cells=settings.ctx_size or capacity * MOST_CTX,
        n_seqs=settings.sequences,
        n_threads=settings.threads,
    )
    head, card = open_head(path, model, options)
    stack.enter_context(closing(head))
    drafter = HeadDrafter(head, path_min=settings.path_min)
    return Kind(drafter, head.what, vocabulary_card(head.vocab), capacity, rows=card)


def _engine_kind(settings: DrafterSettings, stack: ExitStack) -> Kind:
    vocab = stack.enter_context(closing(_open_vocabulary(settings.vocab_from))).vocab
    client = stack.enter_context(
        closing(EngineClient(settings.url, key=settings.engine_key, model=settings.engine_model))
    )
    try:
        engine = HttpEngine(client, dialect := dialect_of(client, vocab), slots_of(client))
    except EngineError as error:
        raise StartupError(f"--url: {error}") from error
    name = f"{settings.engine_model or dialect.name} at {client.url}"
    capacity = settings.capacity or MODEL_CAPACITY
    return Kind(EngineDrafter(engine, vocab), name, vocabulary_card(vocab), capacity)


def _browser_kind(settings: DrafterSettings, stack: ExitStack) -> Kind:
    """Return the drafter that asks a browser through standard input and output."""
    use_no_gpu()
    out = os.dup(_STDOUT)
    os.dup2(_STDERR, _STDOUT)  # other prints must not reach the browser
    vocab = stack.enter_context(closing(_open_vocabulary(settings.vocab_from))).vocab
    link = BrowserLink(sys.stdin.buffer, out, salt=settings.lent_salt)
    name = f"{settings.vocab_from.name} in a browser"
    drafter = EngineDrafter(link, vocab)
    return Kind(drafter, name, vocabulary_card(vocab), BROWSER_CAPACITY, settings.lent_by, link)


WITH_RESOURCES = {"model": _model_kind, "engine": _engine_kind}
BY_LEADS = {"browser": _browser_kind}
"""Kinds that leads start, with a browser at the other end."""


def _card_of_file(path: Path) -> VocabularyCard:
    with closing(_open_vocabulary(path)) as backend:
        return vocabulary_card(backend.vocab)


def _open_vocabulary(path: Path) -> LlamaBackend:
    """Open a model for its vocabulary only."""
    options = LlamaOptions(path, n_cells=_CELLS, n_seqs=1, n_batch=_CELLS, weights=Weights(n_gpu_layers=0))
    return LlamaBackend(options)
