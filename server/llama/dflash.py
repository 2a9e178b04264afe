"""Run a DFlash or DSpark head: a small model, in its own file, that guesses several tokens in one decode.

The head has a cell for each of the target's positions, made from hidden rows of several target layers. One
decode of the last committed token and of mask tokens gives the logits of all guesses; these rows attend to
the cells and to each other. llama.cpp's own code decodes them in the same way (common/speculative.cpp).
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from server.errors import StartupError
from server.llama.backend import Batch, Embeddings, Grid, Hidden, Logits
from server.llama.library import C, LoadedModel, hidden_rows
from server.llama.llamacpp import LlamaBackend, LlamaVocabulary
from server.llama.mtp import BlockContext
from server.llama.options import Rope
from server.llama.target_rows import TARGETS, LayerRows, layers_of
from server.llama.tensors import DFLASH, tensors

UNTOLD_SIZE = 16  # tokens of a block if its file does not say, as in llama.cpp
MARKOV, SELECTOR = "markov_w1.weight", "selector_hidden.weight"  # tensors of DSpark's and of DFlash 2's heads
SECTIONED = 8  # LLAMA_ROPE_TYPE_MROPE: four positions for each row without a token


class DFlashHead(BlockContext):
    """A DFlash or DSpark head. Implements PredictionBlock.

    All guesses of a step are made at once, so none depends on the tokens chosen for earlier ones. A cell is
    made when the token after its position is evaluated: for n tokens, the head has n - 1 cells. The head owns
    its weights; close it before the target.

    Raises:
        StartupError: The head does not fit this target, or this build of llama.cpp lacks what it needs.
    """

    def __init__(self, target: LlamaBackend, path: Path, most: int = 0) -> None:
        """Load the head.

        Args:
            target: The model whose tokens it guesses.
            path: The head's file.
            most: Maximum guesses in a step; 0: as many as it was trained for.
        """
        functions = hidden_rows("a DFlash head needs", "leave out --draft-model")
        named = tensors(path)
        self.source = "dspark" if MARKOV in named else "dflash"
        what = {"dspark": "DSpark", "dflash": "DFlash"}[self.source]
        super().__init__(functions, target, f"the {what} head in {path.name}")
        kept = target.options.weights
        self.model = LoadedModel(path, replace(kept, mtp=False, places=(), overrides=(), adapters=()))
        self._reads: LayerRows | None = None
        try:
            self._layers = layers_of(self.model.handle)
            if reason := self._mismatch_reason(SELECTOR in named):
                raise StartupError(f"{path} cannot draft for {target.name}: {reason}")
            options = replace(target.options, rope=Rope(), n_tail=0)
            self.begin(self.model, options, C.LLAMA_CONTEXT_TYPE_DEFAULT)
            self._reads = LayerRows(target, self._layers)
            self._reads.begin_reading()
        except BaseException:
            self.close()
            raise
        self._measure_block(most)
        C.llama_set_causal_attn(self.handle, self.model.metadata(f"{DFLASH}.attention.causal") == "true")

    def _measure_block(self, most: int) -> None:
        """Set the guesses of a block (at most `most`; 0: as trained) and the maximum rows of a decode."""
        assert self._reads is not None
        self.n_embd = self._reads.width
        self.n_batch = min(self.n_batch, int(C.llama_n_ubatch(self.handle)))  # all rows see each other
        size = int(self.model.metadata(f"{DFLASH}.block_size") or UNTOLD_SIZE)
        from_anchor = self.model.metadata(f"{DFLASH}.sample_from_anchor") != "false"
        self._first = 0 if self.source == "dspark" and from_anchor else 1  # row of the first guess
        self.n_depths = min(size - self._first, most or size)
        self._size = self._first + self.n_depths
        self._mask = int(C.llama_vocab_mask(C.llama_model_get_vocab(self.model.handle)))
        self._sectioned = int(C.llama_model_rope_type(self.model.handle)) == SECTIONED
        self._guesses: dict[int, Logits] = {}  # logits of the latest block, by sequence

    @property
    def vocab(self) -> LlamaVocabulary:
        return LlamaVocabulary(self.model.handle)

    def target_rows(self, n: int) -> Hidden:
        assert self._reads is not None
        return self._reads.take_rows(n)

    def evaluate(self, batch: Batch, hidden: Hidden, depth: int = 0) -> tuple[Logits, Hidden]:
        if depth:
            return np.stack([self._guesses[seq][depth] for seq in batch.seqs]), hidden
        self._make_cells(batch, hidden)
        wanted = [i for i, is_wanted in enumerate(batch.wanted) if is_wanted]
        if not wanted:
            return np.empty((0, self._n_vocab), np.float32), hidden[:0]
        n_at_once = max(1, self.n_batch // self._size)
        for first in range(0, len(wanted), n_at_once):
            self._guess_block(batch, wanted[first : first + n_at_once])
        return np.stack([self._guesses[batch.seqs[i]][0] for i in wanted]), hidden[wanted]

    def trim(self, seq: int, length: int) -> None:
        self._guesses.pop(seq, None)
        super().trim(seq, length)

    def copy(self, source: int, target: int, start: int, end: int) -> None:
        start = max(0, start - 1)
        self.trim(target, start)
        super().copy(source, target, start, end)

    def close(self) -> None:
        if self._reads is not None:
            self._reads.end_reading()
            self._reads = None
        super().close()
        self.model.close()

    def _make_cells(self, batch: Batch, hidden: Hidden) -> None:
        """Make the cell of the position before each token of the batch, from that position's hidden row."""
        firsts: dict[int, int] = {}
        for seq, position in zip(batch.seqs, batch.positions, strict=True):
            firsts.setdefault(seq, position)
        for seq, position in firsts.items():
            super().trim(seq, max(0, position - 1))
        after = [i for i, position in enumerate(batch.positions) if position]
        for first in range(0, len(after), self.n_batch):
            cells, rows = Batch(), after[first : first + self.n_batch]
            for i in rows:
                cells.append((batch.seqs[i],), batch.positions[i] - 1, 0, wanted=False)
            self.read_rows(
                cells, Embeddings(hidden[rows], grid=_places(len(rows)) if self._sectioned else None)
            )

    def _guess_block(self, batch: Batch, rows: list[int]) -> None:
        """Decode a block of guesses after each of these rows (indices) of the batch, and keep its logits."""
        blocks, size = Batch(), self._size
        for i in rows:
            for n in range(size):
                token = self._mask if n else batch.tokens[i]
                blocks.append((batch.seqs[i],), batch.positions[i] + n, token, wanted=True)
        logits = self.decode(blocks)
        for place, i in enumerate(rows):
            own = logits[place * size + self._first : (place + 1) * size]
            self._guesses[batch.seqs[i]] = own.copy()
            super().trim(batch.seqs[i], batch.positions[i])

    def _mismatch_reason(self, has_selector: bool) -> str | None:
        """Return why llama.cpp would exit, or guess noise, with this head and target; None if they fit.

        has_selector: True if the head is of DFlash 2.
        """
        target, vocab = self._target.model, C.llama_model_get_vocab(self.model.handle)
        own, width = (int(C.llama_model_n_embd(one.handle)) for one in (self.model, target))
        n_layers, kind = int(C.llama_model_n_layer(target.handle)), target.metadata("general.architecture")
        checks = {
            "it is of DFlash 2, whose selector duo does not run": has_selector,
            "it is for DeepSeek V4, of whose window llama.cpp trims no part": bool(
                self.model.metadata(f"{DFLASH}.hyper_connection.count")
            ),
            "its file names no mask token": int(C.llama_vocab_mask(vocab)) < 0,
            f"llama.cpp does not give what the layers of architecture {kind} read": kind not in TARGETS,
            f"it is for targets of width {own}, and this one has {width}": own != width,
            f"it reads layer {max(self._layers)}, and the last one is {n_layers - 1}": max(self._layers)
            >= n_layers,
        }
        return next((why for why, is_so in checks.items() if is_so), None)


def _places(n: int) -> Grid:
    """Return the positions of n rows of text in a model with M-RoPE: equal in three of four sections."""
    return Grid(np.zeros((4, n), np.int32), np.array([[1], [1], [1], [0]], np.int32), n)
