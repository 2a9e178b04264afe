"""Run an EAGLE-3 head: a small model, in its own file, that guesses from layers of its target."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from server.errors import BackendError, StartupError
from server.llama.backend import Batch, Hidden, Logits
from server.llama.context import FLOATS
from server.llama.library import C, LoadedModel, hidden_rows
from server.llama.llamacpp import LlamaBackend, LlamaVocabulary
from server.llama.mtp import BlockContext
from server.llama.options import LlamaOptions, Rope
from server.llama.target_rows import TARGETS, LayerRows, layers_of
from server.llama.tensors import EAGLE3, tensors

# Rows that the head fuses at once: llama.cpp reserves memory for the logits of each, 40 MB in all with a
# vocabulary of 150,000. Half: 20 MB; twice: 80 MB. Prompts take equally long with 16, 32, 64 and 128.
MOST_FUSED = 64


class LlamaHead(BlockContext):
    """An EAGLE-3 head: a small model that guesses from hidden rows of several of the target's layers.

    Implements PredictionBlock. The rows are first fused into one row per token. The head may use the target's
    embeddings and unembedding. It owns its own weights; close it before the target. It has no cell at a
    text's first position, because no row precedes it. llama.cpp's own EAGLE-3 code numbers all cells one
    lower, which is equivalent, because attention depends on distances only.

    Raises:
        StartupError: The head does not fit this target, or the build lacks what it needs.
    """

    source = "eagle3"
    n_depths = 0

    def __init__(self, target: LlamaBackend, path: Path, options: LlamaOptions | None = None) -> None:
        """Load the head.

        Args:
            target: The model whose tokens the head guesses. In another process: a model with the target's
                embeddings, for a head that has none.
            path: The head's file.
            options: Options of the head's context, in a process without the target. None: the head reads
                rows of `target`.
        """
        functions = hidden_rows("an EAGLE-3 head needs", "leave out --draft-model")
        super().__init__(functions, target, f"the EAGLE-3 head in {path.name}")
        kept = (options or target.options).weights
        self.model = LoadedModel(path, replace(kept, mtp=False, places=(), overrides=(), adapters=()))
        self._reads: LayerRows | None = None
        try:
            self.layers = layers_of(self.model.handle)
            self.target_width = int(self.model.metadata(f"{EAGLE3}.target_hidden_size") or 0)
            if reason := (self._mismatch_reason() if options is None else None) or self._lack_reason(path):
                raise StartupError(f"{path} cannot draft for {target.name}: {reason}")
            own = replace(options or target.options, rope=Rope(), n_tail=0)
            self.begin(self.model, own, C.LLAMA_CONTEXT_TYPE_DEFAULT)
            if options is None:
                self._reads = LayerRows(target, self.layers)
                self._reads.begin_reading()
        except BaseException:
            self.close()
            raise
        self._n_fused = min(MOST_FUSED, int(C.llama_n_ubatch(self.handle)))

    @property
    def vocab(self) -> LlamaVocabulary:
        return LlamaVocabulary(self.model.handle)

    def target_rows(self, n: int) -> Hidden:
        """Return the hidden rows of the target's last decode: several layers, fused by the head.

        Args:
            n: Number of rows of that decode.

        Raises:
            BackendError: llama.cpp cannot fuse them.
        """
        assert self._reads is not None, "a head elsewhere is sent rows"
        return self.fuse_rows(self._reads.take_rows(n))

    def fuse_rows(self, rows: Hidden) -> Hidden:
        """Return rows for evaluate(), fused from inputs of the target's layers. Raises BackendError."""
        n = len(rows)
        fused = np.empty((n, self.n_embd), dtype=np.float32)
        for first in range(0, n, self._n_fused):
            part = rows[first : first + self._n_fused]
            batch = C.llama_batch(n_tokens=len(part), embd=part.ctypes.data_as(FLOATS))
            if status := int(C.llama_encode(self.handle, batch)):
                raise BackendError(f"llama_encode returned {status} ({len(part)} rows)")
            fused[first : first + len(part)] = self.rows_of(self.handle, len(part))
        return fused

    def evaluate(self, batch: Batch, hidden: Hidden, depth: int = 0) -> tuple[Logits, Hidden]:
        """Evaluate rows; see PredictionBlock.evaluate().

        Logits of all rows are requested if any are wanted, else none. If only some rows were requested,
        llama.cpp would return the logits of the first rows instead.
        """
        after = [i for i, position in enumerate(batch.positions) if position or batch.wanted[i]]
        any_wanted = any(batch.wanted)
        rows = Batch()
        for i in after:
            rows.append((batch.seqs[i],), batch.positions[i], batch.tokens[i], wanted=any_wanted)
        if not after:
            return np.empty((0, self.model.n_vocab), dtype=np.float32), hidden[:0]
        logits, own = super().evaluate(rows, hidden[after], depth)
        if len(logits) == sum(batch.wanted):
            return logits, own
        wanted = [at for at, i in enumerate(after) if batch.wanted[i]]
        return logits[wanted], own[wanted]

    def close(self) -> None:
        if self._reads is not None:
            self._reads.end_reading()
            self._reads = None
        super().close()
        self.model.close()

    def _mismatch_reason(self) -> str | None:
        """Return why llama.cpp would exit or make random guesses with this head; None if it fits."""
        target = self._target.model
        width, n_layers = int(C.llama_model_n_embd(target.handle)), int(C.llama_model_n_layer(target.handle))
        kind = target.metadata("general.architecture")
        if kind not in TARGETS:
            return f"llama.cpp does not give what the layers of architecture {kind} read"
        if self.target_width != width:
            return f"it is for targets of width {self.target_width}, and this one has {width}"
        if max(self.layers) >= n_layers:
            return f"it reads layer {max(self.layers)}, and the last one is {n_layers - 1}"
        return None

    def _lack_reason(self, path: Path) -> str | None:
        """Return which weights the head at `path` lacks and cannot take from its target, None if none."""
        width, own = (int(C.llama_model_n_embd(one.handle)) for one in (self._target.model, self.model))
        if own == width:
            return None
        missing = [name for name in ("token_embd", "output") if f"{name}.weight" not in tensors(path)]
        return f"it has width {own} and lacks {' and '.join(missing)} of its own" if missing else None
