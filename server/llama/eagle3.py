"""Run an EAGLE-3 head: a small model, in its own file, that guesses from layers of its target."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from server.errors import BackendError, StartupError
from server.llama.backend import Batch, Hidden, Logits
from server.llama.context import FLOATS, view
from server.llama.devices import GGML
from server.llama.library import C, LoadedModel, hidden_rows
from server.llama.llamacpp import LlamaBackend, LlamaVocabulary
from server.llama.mtp import BlockContext
from server.llama.options import Rope
from server.llama.tensors import EAGLE3, tensors

# Rows that the head fuses at once: llama.cpp reserves memory for the logits of each, 40 MB in all with a
# vocabulary of 150,000. Off by two: 20 or 80 MB. A prompt takes as long with 16, 32, 64 and 128.
MOST_FUSED = 64
# Targets' architectures whose layers' inputs llama.cpp can give; with others it ends the process.
TARGETS = frozenset(
    (
        "bailingmoe3",
        "gemma4",
        "gpt-oss",
        "hunyuan-dense",
        "hunyuan_vl",
        "lfm2",
        "llama",
        "mimo2",
        "minimax-m2",
    )
    + ("nemotron_h", "nemotron_h_moe", "qwen3", "qwen35", "qwen35moe", "qwen3moe", "qwen3next", "qwen4exp")
)
_MANGLED = {
    "llama_set_embeddings_layer_inp": "_Z30llama_set_embeddings_layer_inpP13llama_contextjb",
    "llama_get_embeddings_layer_inp": "_Z30llama_get_embeddings_layer_inpP13llama_contextj",
    "llama_model_target_layer_ids": "_Z28llama_model_target_layer_idsPK11llama_model",
    "llama_model_target_layer_ids_n": "_Z30llama_model_target_layer_ids_nPK11llama_model",
}


class LlamaHead(BlockContext):
    """An EAGLE-3 head: a model of its own that reads fused rows of several of the target's layers.

    Implements PredictionBlock. It may use the target's embeddings and unembedding. It owns the head's
    weights; close it before the target. It has no cell at a text's first position, since no row precedes
    that. The loop in llama.cpp places each cell one position earlier, which is equivalent: attention depends
    on distances.

    Raises:
        StartupError: The head does not fit this target, or the build lacks what it needs.
    """

    source = "eagle3"
    n_depths = 0

    def __init__(self, target: LlamaBackend, path: Path) -> None:
        functions = hidden_rows("an EAGLE-3 head needs", "leave out --draft-model")
        super().__init__(functions, target, f"the EAGLE-3 head in {path.name}")
        self._set_layer, self._get_layer, find_layers, count_layers = _layer_functions()
        weights = replace(target.options.weights, mtp=False, places=(), overrides=(), adapters=())
        self.model = LoadedModel(path, weights)
        try:
            found = find_layers(self.model.handle)
            self._layers = [int(found[i]) for i in range(count_layers(self.model.handle))]
            if reason := self._mismatch_reason(path):
                raise StartupError(f"{path} cannot draft for {target.name}: {reason}")
            options = replace(target.options, rope=Rope(), n_tail=0)
            self.begin(self.model, options, C.LLAMA_CONTEXT_TYPE_DEFAULT)
        except BaseException:
            self.close()
            raise
        self._width = int(C.llama_model_n_embd(target.model.handle))
        for layer in self._layers:
            self._set_layer(target.handle, layer, True)
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
        read = [view(self._get_layer(self._target.handle, layer), n, self._width) for layer in self._layers]
        wide = np.concatenate(read, axis=1)
        fused = np.empty((n, self.n_embd), dtype=np.float32)
        for first in range(0, n, self._n_fused):
            part = wide[first : first + self._n_fused]
            rows = C.llama_batch(n_tokens=len(part), embd=part.ctypes.data_as(FLOATS))
            if status := int(C.llama_encode(self.handle, rows)):
                raise BackendError(f"llama_encode returned {status} ({len(part)} rows)")
            fused[first : first + len(part)] = self.rows_of(self.handle, len(part))
        return fused

    def evaluate(self, batch: Batch, hidden: Hidden, depth: int = 0) -> tuple[Logits, Hidden]:
        """Evaluate rows; see PredictionBlock.evaluate().

        llama.cpp is asked for the logits of all rows if any are wanted, else for none. Asked for those of
        some rows, it would return those of the first rows instead.
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
        super().close()
        self.model.close()

    def _mismatch_reason(self, path: Path) -> str | None:
        """Return why llama.cpp would exit, or guess noise, with this head and target; None if they fit."""
        target = self._target.model
        width, n_layers = int(C.llama_model_n_embd(target.handle)), int(C.llama_model_n_layer(target.handle))
        asked = int(self.model.metadata(f"{EAGLE3}.target_hidden_size") or 0)
        kind = target.metadata("general.architecture")
        if kind not in TARGETS:
            return f"llama.cpp does not give what the layers of architecture {kind} read"
        if asked != width:
            return f"it is for targets of width {asked}, and this one has {width}"
        if max(self._layers) >= n_layers:
            return f"it reads layer {max(self._layers)}, and the last one is {n_layers - 1}"
        own, missing = int(C.llama_model_n_embd(self.model.handle)), []
        if own != width:
            missing = [name for name in ("token_embd", "output") if f"{name}.weight" not in tensors(path)]
        return f"it has width {own} and lacks {' and '.join(missing)} of its own" if missing else None


def _layer_functions() -> list[Any]:
    """Return the functions of _MANGLED, in order. Raises StartupError if this build lacks one."""
    types = {
        "llama_set_embeddings_layer_inp": (None, [ctypes.c_void_p, ctypes.c_uint32, ctypes.c_bool]),
        "llama_get_embeddings_layer_inp": (FLOATS, [ctypes.c_void_p, ctypes.c_uint32]),
        "llama_model_target_layer_ids": (ctypes.POINTER(ctypes.c_int32), [ctypes.c_void_p]),
        "llama_model_target_layer_ids_n": (ctypes.c_uint32, [ctypes.c_void_p]),
    }
    found: list[Any] = []
    for name, mangled in _MANGLED.items():
        function = getattr(GGML, mangled, None) or getattr(GGML, name, None)
        if function is None:
            raise StartupError(
                f"this llama-cpp-python lacks {name}, which an EAGLE-3 head needs: install that of duo's "
                "requirements, or leave out --draft-model"
            )
        function.restype, function.argtypes = types[name]
        found.append(function)
    return found
