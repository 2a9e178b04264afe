"""Run a prediction block (MTP), in the model's file or its own, in a llama.cpp context beside the model's.

BlockContext is the part that all heads share.
"""

from __future__ import annotations

import ctypes
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from server.errors import StartupError
from server.llama.backend import Batch, Hidden, Logits
from server.llama.context import LlamaContext, view
from server.llama.context_params import context_params, spare_sequence
from server.llama.graph_keys import keys_of
from server.llama.library import C, LoadedModel, first_error, hidden_rows
from server.llama.llamacpp import LlamaBackend, LlamaVocabulary
from server.llama.options import LlamaOptions
from server.llama.parts import model_name
from server.llama.target_rows import OutputRows
from server.llama.with_block import MOST_WAITING


class BlockContext(LlamaContext):
    """Base of all PredictionBlocks over llama.cpp: a context that reads a hidden row with each token."""

    can_trim = True

    def __init__(self, functions: Any, target: LlamaBackend, what: str) -> None:
        """Prepare a block of the target.

        Args:
            functions: The library whose functions give hidden rows.
            target: The model whose tokens the block guesses.
            what: What error messages call the block.
        """
        self._ext, self._target, self.what = functions, target, what

    def begin(self, model: LoadedModel, options: LlamaOptions, kind: int) -> None:
        """Make the block's context. Raises StartupError.

        Args:
            model: The model that contains the block: the target's, or the block's own.
            options: Options of the context.
            kind: llama.cpp's llama_context_type.
        """
        target = self._target
        params = context_params(options)
        if C.llama_model_n_swa(model.handle):
            spare_sequence(params)
        params.n_ctx += params.n_seq_max * MOST_WAITING  # cells of guesses and of recently trimmed rows
        params.swa_full = True
        params.ctx_type = kind
        params.ctx_other = ctypes.cast(target.handle, ctypes.c_void_p)
        self.keys = keys_of(model, params)
        handle = model.context(params)
        if not handle:
            self.close()
            raise StartupError(
                f"llama.cpp makes no context for {self.what}{first_error()}: perhaps it lacks memory, and a "
                "smaller --ctx-size helps"
            )
        self.attach(model, handle, n_streams=options.n_streams, overlaps=target.overlaps)
        self.n_embd, self.n_seqs = int(C.llama_model_n_embd_out(model.handle)), options.n_seqs
        self.n_ctx = min(model.longest(options.rope), self.n_cells)
        one_cache = not int(
            C.llama_model_n_swa(model.handle)
        )  # with two caches, one has no layers and cannot be moved
        self.can_shift = one_cache and bool(C.llama_memory_can_shift(self.memory))
        self._ext.llama_set_embeddings_nextn(handle, True, True)  # of rows with logits

    def evaluate(self, batch: Batch, hidden: Hidden, depth: int = 0) -> tuple[Logits, Hidden]:
        self.rows.embed(hidden)
        logits = self.decode(batch)
        rows = self.rows_of(self.handle, len(logits) + len(self.dropped))
        return logits, np.delete(rows, self.dropped, axis=0) if self.dropped else rows

    def fuse_rows(self, rows: Hidden) -> Hidden:
        """Return hidden rows of the target in the form that evaluate() takes. Raises BackendError."""
        return rows

    def rows_of(self, handle: Any, n: int) -> Hidden:
        """Return a view of the n hidden rows of a context's last decode."""
        if not n:
            return np.empty((0, self.n_embd), dtype=np.float32)
        return view(self._ext.llama_get_embeddings_nextn(handle), n, self.n_embd)


class _Guess(NamedTuple):
    """One row that a block reads for a guess."""

    position: int
    token: int
    hidden: Hidden


class LlamaBlock(BlockContext):
    """The block in the model's file, or several blocks, each of which guesses at one depth.

    Implements PredictionBlock. Close it before the target. Several blocks share cells, in which each block
    has its own keys and values. One block after the other evaluates the model's tokens in the same cells. The
    block for a depth also evaluates the guesses of lower depths.

    Raises:
        StartupError: No context can be made, or this build of llama.cpp gives no hidden rows.
    """

    source = "mtp"

    def __init__(
        self,
        target: LlamaBackend,
        most: int = 0,
        model: LoadedModel | None = None,
        name: str = "",
        options: LlamaOptions | None = None,
    ) -> None:
        """Make the context.

        Args:
            target: The model whose tokens the blocks guess.
            most: Use only the blocks for the first `most` guesses of a step; 0: all blocks.
            model: The weights with the blocks; None: the target's.
            name: The name of these weights in messages; "": the target's name.
            options: Options of the blocks' context, in a process without the target. None: the blocks read
                rows of `target`.
        """
        functions = hidden_rows("its block needs", "say --mtp off")
        model = model or target.model
        n_blocks = model.n_blocks
        self.n_depths = 0 if n_blocks == 1 else min(n_blocks, most or n_blocks)
        blocks = "prediction blocks" if self.n_depths else "prediction block"
        super().__init__(functions, target, f"the {blocks} in {name or target.name}")
        self.begin(model, options or target.options, C.LLAMA_CONTEXT_TYPE_MTP)
        self._reads = OutputRows(target)
        if options is None:
            self._reads.begin_reading()
        self.how = f"one for each of {self.n_depths} depths" if self.n_depths else "at any depth"
        self._guesses: dict[int, list[_Guess]] = {}  # of the last step, by sequence

    def target_rows(self, n: int) -> Hidden:
        return self._reads.take_rows(n)

    def evaluate(self, batch: Batch, hidden: Hidden, depth: int = 0) -> tuple[Logits, Hidden]:
        if depth and self.n_depths:
            batch, hidden = self._with_earlier(batch, hidden, depth)
            return self._evaluate_by(depth, batch, hidden)
        for deeper in range(self.n_depths - 1, 0, -1):
            self._evaluate_by(deeper, replace(batch, wanted=[False] * len(batch)), hidden)
            self._free_cells(batch)
        return self._evaluate_by(0, batch, hidden)

    def _evaluate_by(self, block: int, batch: Batch, hidden: Hidden) -> tuple[Logits, Hidden]:
        if self.n_depths:
            self._ext.llama_set_nextn_layer_offset(self.handle, block)
        return super().evaluate(batch, hidden)

    def _free_cells(self, batch: Batch) -> None:
        """Free these rows' cells, so that their next decode gets the same cells again."""
        firsts: dict[int, int] = {}
        for seq, position in zip(batch.seqs, batch.positions, strict=True):
            firsts.setdefault(seq, position)
        for seq, position in firsts.items():
            self.trim(seq, position)

    def _with_earlier(self, batch: Batch, hidden: Hidden, depth: int) -> tuple[Batch, Hidden]:
        """Return the batch and hidden rows, with the sequence's earlier guesses inserted before each row.

        depth: Number of guesses, including the row's own token; 1: there are no earlier guesses.
        """
        whole = Batch()
        rows: list[Hidden] = []
        for seq, position, token, row in zip(batch.seqs, batch.positions, batch.tokens, hidden, strict=True):
            guesses = self._guesses.setdefault(seq, [])
            guesses[depth - 1 :] = [_Guess(position, token, row)]
            for one in guesses:
                whole.append((seq,), one.position, one.token, wanted=one.position == position)
                rows.append(one.hidden)
        if depth > 1:
            self._free_cells(whole)
        return whole, np.stack(rows)


class BlockFile(LlamaBlock):
    """The blocks in a separate file, which does not contain their target. Owns their weights.

    Raises:
        StartupError: As LlamaBlock; also if the file cannot be loaded, or belongs to another model.
    """

    def __init__(
        self, target: LlamaBackend, path: Path, most: int = 0, options: LlamaOptions | None = None
    ) -> None:
        """Load the blocks; the parameters are those of LlamaBlock."""
        kept = (options or target.options).weights
        self.model = LoadedModel(path, replace(kept, mtp=True, places=(), overrides=(), adapters=()))
        try:
            if reason := self._mismatch_reason(target.model):
                raise StartupError(f"{path} cannot draft for {target.name}: {reason}")
            super().__init__(target, most, self.model, model_name(path), options)
        except BaseException:
            self.close()
            raise

    @property
    def vocab(self) -> LlamaVocabulary:
        return LlamaVocabulary(self.model.handle)

    def close(self) -> None:
        super().close()
        self.model.close()

    def _mismatch_reason(self, target: LoadedModel) -> str | None:
        """Return why llama.cpp would exit or make random guesses with this target; None if it fits."""
        kinds = [model.metadata("general.architecture") for model in (self.model, target)]
        widths = [int(C.llama_model_n_embd_out(model.handle)) for model in (self.model, target)]
        if not self.model.n_blocks:
            return "it has no prediction block that llama.cpp can evaluate"
        if kinds[0] != kinds[1]:
            return f"it is for targets of architecture {kinds[0]}, and this one is {kinds[1]}"
        if widths[0] != widths[1]:
            return f"it is for targets of width {widths[0]}, and this one has {widths[1]}"
        return None
