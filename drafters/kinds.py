"""The kinds of drafters, put together from the settings."""

from __future__ import annotations

from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

from drafters.drafter import Drafter
from drafters.drafter_settings import DrafterSettings
from drafters.expansion import MOST_BRANCHES
from drafters.lookup_drafter import LookupDrafter
from drafters.model import ModelDrafter
from drafters.replay import ReplayDrafter, Script, read_texts
from drafters.translating import TranslatingDrafter
from server.errors import StartupError
from server.llama.library import default_cells
from server.llama.llamacpp import LlamaBackend
from server.llama.model_settings import downloaded
from server.llama.options import LlamaOptions, Weights
from server.llama.shapes import UNKNOWN, measure
from server.speculation.wire.presence import VocabularyCard, vocabulary_card

MODEL_CAPACITY = 4  # full conversations the KV cache has room for when --ctx-size does not say otherwise
OTHER_CAPACITY = 256
_FEWEST_CELLS = 32  # enough to open a model for its vocabulary


@dataclass(frozen=True, slots=True)
class Kind:
    """A drafter, and what its process says of itself. capacity: sessions at once."""

    drafter: Drafter
    name: str
    vocabulary: VocabularyCard
    capacity: int


def assemble(settings: DrafterSettings, stack: ExitStack) -> Kind:
    """The drafter that the settings ask for; the stack closes what it needs. Raises StartupError."""
    if settings.kind == "model":
        return _model(settings, stack)
    capacity = settings.capacity or OTHER_CAPACITY
    drafter = LookupDrafter() if settings.kind == "lookup" else _replay(settings)
    with closing(_opened(settings.vocab_from)) as backend:
        return Kind(drafter, settings.kind, vocabulary_card(backend.vocab), capacity)


def _replay(settings: DrafterSettings) -> ReplayDrafter:
    if settings.texts is None:
        raise StartupError("nothing to replay: give a file of texts with --texts")
    script = Script(settings.accept, settings.td_ms / 1000, settings.hit, settings.seed)
    return ReplayDrafter(read_texts(settings.texts), script)


def _model(settings: DrafterSettings, stack: ExitStack) -> Kind:
    capacity = min(settings.capacity or MODEL_CAPACITY, settings.sequences)
    path = downloaded(settings).model
    options = settings.options(
        path,
        n_cells=settings.ctx_size or default_cells(path, capacity, settings.weights, settings.rope),
        n_seqs=settings.sequences + settings.branches + MOST_BRANCHES,
        n_threads=settings.threads,
    )
    backend = stack.enter_context(closing(LlamaBackend(options)))
    n_branches = 0 if settings.translate else settings.branches
    shapes = measure(backend, range(1, MOST_BRANCHES + 2)) if n_branches else UNKNOWN
    steady = shapes.steady if shapes.padding_pays else None
    drafter: Drafter = ModelDrafter(backend, path_min=settings.path_min, n_branches=n_branches, steady=steady)
    vocab = backend.vocab
    if settings.translate is not None:
        vocab = stack.enter_context(closing(_opened(settings.translate))).vocab
        drafter = TranslatingDrafter(drafter, backend.vocab, vocab)
    return Kind(drafter, backend.name, vocabulary_card(vocab), capacity)


def _opened(path: Path) -> LlamaBackend:
    """A model for its vocabulary only."""
    return LlamaBackend(
        LlamaOptions(
            path, n_cells=_FEWEST_CELLS, n_seqs=1, n_batch=_FEWEST_CELLS, weights=Weights(n_gpu_layers=0)
        )
    )
