"""Base of backends that add something to a model's decodes."""

from __future__ import annotations

from collections.abc import Callable

from server.llama.backend import Backend, Batch, Logits, Vocabulary


class OverModel:
    """The part of Backend that is the model's own. Subclasses implement start() and the other methods."""

    vocab: Vocabulary
    name: str
    chat_template: str | None
    n_cells: int
    n_ctx: int
    n_seqs: int
    n_batch: int
    can_trim: bool
    n_tail: int
    can_copy: bool
    can_share: bool
    can_shift: bool
    overlaps: bool

    def __init__(self, backend: Backend) -> None:
        self.vocab, self.name, self.chat_template = backend.vocab, backend.name, backend.chat_template
        self.n_cells, self.n_ctx = backend.n_cells, backend.n_ctx
        self.n_seqs, self.n_batch = backend.n_seqs, backend.n_batch
        self.can_trim, self.n_tail, self.can_copy = backend.can_trim, backend.n_tail, backend.can_copy
        self.can_share, self.can_shift = backend.can_share, backend.can_shift
        self.overlaps = backend.overlaps
        self.length, self.intact = backend.length, backend.intact

    def start(self, batch: Batch) -> Callable[[], Logits]:
        raise NotImplementedError

    def decode(self, batch: Batch) -> Logits:
        finish = self.start(batch)
        if batch.meanwhile is not None and self.overlaps:
            batch.meanwhile()
        return finish()
