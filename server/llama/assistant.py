"""Run a small model, in its own file, that guesses from its target's KV cache (Gemma 4's assistant)."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from server.errors import StartupError
from server.llama.backend import Batch, Hidden, Logits
from server.llama.library import C, LoadedModel, hidden_rows
from server.llama.llamacpp import LlamaBackend
from server.llama.mtp import BlockContext
from server.llama.options import Weights
from server.llama.parts import model_name


class Assistant(BlockContext):
    """A model that attends to its target's cells and has no cells itself. Implements PredictionBlock.

    It reserves one cell of the target per sequence: llama.cpp requires a free cell for each row, although
    nothing is written there. Close the assistant before the target.
    """

    source = "mtp"
    n_depths = 0

    def __init__(self, target: LlamaBackend, path: Path, weights: Weights) -> None:
        """Load the assistant; `weights`: options of its weights. Raises StartupError."""
        functions = hidden_rows("an assistant needs", "leave out --draft-model")
        super().__init__(functions, target, model_name(path))
        self.how = f"on the KV cache of {target.name}, at any depth"
        self._model = LoadedModel(path, weights)
        try:
            self._check_fit(path)
            self.begin(self._model, target.options, C.LLAMA_CONTEXT_TYPE_MTP)
        except BaseException:
            self.close()
            raise
        self.can_shift = True  # the target shifts for it
        self._ext.llama_set_embeddings_nextn(target.handle, True, False)  # of all rows
        target.n_cells -= target.n_seqs
        target.n_ctx = min(target.n_ctx, target.n_cells)

    def _check_fit(self, path: Path) -> None:
        target = self._target
        widths = [
            (int(C.llama_model_n_embd_out(model.handle)), model.n_vocab)
            for model in (self._model, target.model)
        ]
        if widths[0] != widths[1]:
            own, other = (f"{width} channels and {n_vocab} tokens" for width, n_vocab in widths)
            raise StartupError(
                f"{path} is the assistant of a model with {own}, not of {target.name} with {other}: "
                "give that of this model with --draft-model"
            )

    def target_rows(self, n: int) -> Hidden:
        return self.rows_of(self._target.handle, n).copy()

    def evaluate(self, batch: Batch, hidden: Hidden, depth: int = 0) -> tuple[Logits, Hidden]:
        """Evaluate the wanted rows; see PredictionBlock.evaluate().

        All guesses of a step get the position of its first guess: `depth`, the number of earlier guesses, is
        subtracted from the positions of the rows.
        """
        guesses = Batch()
        rows = [i for i, wanted in enumerate(batch.wanted) if wanted]
        for i in rows:
            guesses.append((batch.seqs[i],), batch.positions[i] - depth, batch.tokens[i], wanted=True)
        if not rows:
            return np.empty((0, self._model.n_vocab), dtype=np.float32), hidden[:0]
        return super().evaluate(guesses, np.ascontiguousarray(hidden[rows]))

    def trim(self, seq: int, length: int) -> None:
        """Do nothing: the assistant uses the cells of the target, which trims them."""

    def save(self, seq: int) -> bytes:
        return b""

    def load(self, seq: int, data: bytes) -> None:
        """Do nothing: the assistant has no state."""

    def copy(self, source: int, target: int, start: int, end: int) -> None:
        """Do nothing: the assistant uses the cells of the target, which copies them."""

    def shift(self, seq: int, start: int, end: int) -> None:
        """Do nothing: the assistant uses the cells of the target, which shifts them."""

    def close(self) -> None:
        super().close()
        self._model.close()
