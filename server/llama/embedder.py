"""Compute embeddings in a llama.cpp context of the lead's model or of another model."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from server.errors import BackendError, StartupError
from server.llama.backend import Batch
from server.llama.context import LlamaBatch
from server.llama.context_params import context_params
from server.llama.embedding import Pooling, Vectors, normalised
from server.llama.library import C, LoadedModel, first_error, tokenize
from server.llama.options import LlamaOptions
from server.llama.parts import model_name

# Maximum tokens of an input: its attention is computed at once, in memory that grows with its length.
MAX_INPUT_TOKENS = 2048
INPUTS_AT_ONCE = 16  # maximum inputs of a batch: more short inputs in one batch are hardly faster
_POOLINGS: dict[Pooling, int] = {"mean": 1, "cls": 2, "last": 3, "rank": 4}


class LlamaEmbedder:
    """An Embedder over llama.cpp. Raises StartupError if the model cannot be loaded or cannot embed."""

    def __init__(
        self, options: LlamaOptions, *, pooling: Pooling | None = None, model: LoadedModel | None = None
    ) -> None:
        """Prepare an embedder; the first embed() makes its context.

        Args:
            options: Options of the model; n_cells is the maximum number of an input's tokens.
            pooling: How rows become one vector; None: as the file specifies, else their mean.
            model: The model with these options if it is loaded already; it is not closed here.
        """
        self._owned = model is None
        self.model = model or LoadedModel(options.model_path, options.weights)
        self.path = options.model_path
        self._context: Any = None
        self.name = model_name(options.model_path)
        try:
            self._prepare_context(options, pooling)
        except BaseException:
            self.close()
            raise

    def _prepare_context(self, options: LlamaOptions, pooling: Pooling | None) -> None:
        handle = self.model.handle
        if C.llama_model_has_encoder(handle) and C.llama_model_has_decoder(handle):
            raise StartupError(f"{options.model_path} is an encoder with a decoder: duo cannot embed with it")
        self.n_ctx = min(options.n_cells, self.model.longest(options.rope), MAX_INPUT_TOKENS)
        self.n_seqs = INPUTS_AT_ONCE
        self._params = context_params(
            replace(
                options,
                n_cells=self.n_ctx,
                n_seqs=INPUTS_AT_ONCE,
                n_batch=self.n_ctx,
                n_ubatch=0,
                n_streams=0,
            )
        )
        self._params.embeddings = True
        self._params.pooling_type = self._chosen_pooling(pooling)
        self._vocab = C.llama_model_get_vocab(handle)
        self.n_vocab = self.model.n_vocab
        self._ranks = pooling == "rank"
        self.n_embd = int((C.llama_model_n_cls_out if self._ranks else C.llama_model_n_embd_out)(handle))

    def _open_context(self) -> None:
        self._context = self.model.context(self._params)
        if not self._context:
            raise BackendError(f"llama.cpp makes no context for embeddings of {self.name}{first_error()}")
        self._memory = C.llama_get_memory(self._context)  # none, if the model only encodes
        self._rows = LlamaBatch(self.n_ctx)

    def _chosen_pooling(self, wanted: Pooling | None) -> int:
        own = _own_pooling(self.model)
        if wanted is None and own == _POOLINGS["rank"]:
            raise StartupError(f"{self.name} ranks texts instead of embedding them: it is a --rerank-model")
        return _POOLINGS[wanted] if wanted else own or _POOLINGS["mean"]

    def tokenize(self, text: str, *, framed: bool = True) -> list[int]:
        return tokenize(self._vocab, text, begin=framed, special=True)

    def pair(self, query: str, document: str) -> list[int]:
        """Return the ids of query and document in one input, as llama-server joins them.

        They fill the file's template for ranking if it has one. Otherwise special tokens join them.
        """
        vocab, template = self._vocab, C.llama_model_chat_template(self.model.handle, b"rerank")
        if template:
            texts = {"{query}": query, "{document}": document}
            whole = re.sub("|".join(texts), lambda found: texts[found[0]], template.decode())
            return tokenize(vocab, whole, begin=False, special=True)
        first, second = (tokenize(vocab, text, begin=False, special=False) for text in (query, document))
        end, separator = C.llama_vocab_eos(vocab), C.llama_vocab_sep(vocab)
        ends = [end if end >= 0 else separator] * C.llama_vocab_get_add_eos(vocab)
        begins = [C.llama_vocab_bos(vocab)] * C.llama_vocab_get_add_bos(vocab)
        return [*begins, *first, *ends, *[separator] * C.llama_vocab_get_add_sep(vocab), *second, *ends]

    def embed(self, inputs: Sequence[Sequence[int]]) -> Vectors:
        if not self._context:
            self._open_context()
        if self._memory:
            C.llama_memory_clear(self._memory, True)
        batch = Batch()
        for seq, tokens in enumerate(inputs):
            batch.extend(seq, 0, tokens, len(tokens))
        self._rows.fill(batch)
        if status := C.llama_decode(self._context, self._rows.batch):
            raise BackendError(f"llama_decode returned {status} ({len(batch)} rows to embed)")
        vectors = np.stack([self._vector_of(seq) for seq in range(len(inputs))])
        return vectors if self._ranks else normalised(vectors)

    def close(self) -> None:
        if self._context:
            C.llama_free(self._context)
            self._context = None
        if self._owned:
            self.model.close()

    def _vector_of(self, seq: int) -> Vectors:
        pointer = C.llama_get_embeddings_seq(self._context, seq)
        if not pointer:
            raise BackendError("llama.cpp has no embedding for this input")
        return np.ctypeslib.as_array(pointer, shape=(self.n_embd,)).copy()


def ranks(model: LoadedModel) -> bool:
    """Return True if the model ranks texts, according to the pooling type in its file."""
    return _own_pooling(model) == _POOLINGS["rank"]


def _own_pooling(model: LoadedModel) -> int:
    architecture = model.metadata("general.architecture")
    return int(model.metadata(f"{architecture}.pooling_type") or 0)
