"""Read hidden rows of a target's decodes: inputs of some layers, or the output of the last layer."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from server.errors import StartupError
from server.llama.backend import Hidden
from server.llama.context import FLOATS, view
from server.llama.devices import GGML
from server.llama.library import C, hidden_rows
from server.llama.llamacpp import LlamaBackend

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
# Architectures of which llama.cpp gives the last layer's output; with others it ends the process.
BLOCK_TARGETS = frozenset(
    ("bailingmoe3", "cohere2moe", "deepseek2", "deepseek32", "glm-dsa", "glm4moe", "glm5-next", "hy_v3")
    + ("mimo2", "nemotron_h_moe", "qwen35", "qwen35moe", "qwen3next", "step35")
)
OUTPUT = -1  # means the last layer's output, in lists of layers whose inputs are read
_MANGLED = {
    "llama_set_embeddings_layer_inp": "_Z30llama_set_embeddings_layer_inpP13llama_contextjb",
    "llama_get_embeddings_layer_inp": "_Z30llama_get_embeddings_layer_inpP13llama_contextj",
    "llama_model_target_layer_ids": "_Z28llama_model_target_layer_idsPK11llama_model",
    "llama_model_target_layer_ids_n": "_Z30llama_model_target_layer_ids_nPK11llama_model",
}
_TYPES = {
    "llama_set_embeddings_layer_inp": (None, [ctypes.c_void_p, ctypes.c_uint32, ctypes.c_bool]),
    "llama_get_embeddings_layer_inp": (FLOATS, [ctypes.c_void_p, ctypes.c_uint32]),
    "llama_model_target_layer_ids": (ctypes.POINTER(ctypes.c_int32), [ctypes.c_void_p]),
    "llama_model_target_layer_ids_n": (ctypes.c_uint32, [ctypes.c_void_p]),
}


def layers_of(head: Any) -> list[int]:
    """Return the target's layers whose inputs a loaded EAGLE-3 or DFlash head reads. Raises StartupError."""
    found = _function("llama_model_target_layer_ids")(head)
    return [int(found[i]) for i in range(_function("llama_model_target_layer_ids_n")(head))]


def _function(name: str) -> Any:
    """Return llama.cpp's function of this name, a key of _MANGLED. Raises StartupError if it is missing."""
    function = getattr(GGML, _MANGLED[name], None) or getattr(GGML, name, None)
    if function is None:
        raise StartupError(
            f"this llama-cpp-python lacks {name}, which an EAGLE-3 head needs: install that of duo's "
            "requirements, or leave out --draft-model"
        )
    function.restype, function.argtypes = _TYPES[name]
    return function


class RowSource(Protocol):
    """A source of hidden rows of a model's latest decode; implemented by `OutputRows` and `LayerRows`."""

    width: int  # floats of a row

    def begin_reading(self) -> None:
        """Make all later decodes compute the rows."""
        ...

    def take_rows(self, n: int) -> Hidden:
        """Return a copy of the n rows of the latest decode."""
        ...

    def end_reading(self) -> None:
        """Stop computing the rows in later decodes, unless another reader needs them."""
        ...


class LayerRows:
    """A RowSource of the inputs of several of the target's layers, side by side."""

    def __init__(self, target: LlamaBackend, layers: Sequence[int]) -> None:
        """Begin without effect on the target. Raises StartupError if this build gives no such rows."""
        self._target, self._layers = target, layers
        self._set, self._get = (_function(f"llama_{verb}_embeddings_layer_inp") for verb in ("set", "get"))
        self._layer_width = int(C.llama_model_n_embd(target.model.handle))
        self.width = self._layer_width * len(layers)

    def begin_reading(self) -> None:
        for layer in self._layers:
            self._count(layer, 1)

    def take_rows(self, n: int) -> Hidden:
        read = [view(self._get(self._target.handle, layer), n, self._layer_width) for layer in self._layers]
        return np.concatenate(read, axis=1)

    def end_reading(self) -> None:
        for layer in self._layers:
            self._count(layer, -1)

    def _count(self, layer: int, n: int) -> None:
        """Add n readers of a layer (n may be negative).

        If the layer gets its first reader or loses its last, notify llama.cpp, which then builds a new graph.
        """
        readers = self._target.layer_readers
        before = readers[layer]
        readers[layer] += n
        if bool(before) != bool(readers[layer]):
            self._set(self._target.handle, layer, bool(readers[layer]))


class OutputRows:
    """A RowSource of the output of the last layer, which prediction blocks read."""

    def __init__(self, target: LlamaBackend) -> None:
        """Begin without effect on the target. Raises StartupError if this build gives no such rows."""
        self._target, self._functions = target, hidden_rows("its block needs", "say --mtp off")
        self.width = int(C.llama_model_n_embd_out(target.model.handle))

    def begin_reading(self) -> None:
        self._count(1)

    def take_rows(self, n: int) -> Hidden:
        if not n:
            return np.empty((0, self.width), np.float32)
        rows = self._functions.llama_get_embeddings_nextn(self._target.handle)
        return view(rows, n, self.width).copy()

    def end_reading(self) -> None:
        self._count(-1)

    def _count(self, n: int) -> None:
        readers = self._target.layer_readers
        readers[OUTPUT] += n
        self._functions.llama_set_embeddings_nextn(
            self._target.handle, bool(readers[OUTPUT]), False
        )  # of all rows


def row_source(target: LlamaBackend, layers: tuple[int, ...]) -> RowSource:
    """Return a source of these layers' inputs; OUTPUT: of the last layer's output. Raises StartupError."""
    return OutputRows(target) if OUTPUT in layers else LayerRows(target, layers)


def given_layers(target: LlamaBackend) -> tuple[int, ...]:
    """Return the layers whose inputs the target can provide; OUTPUT stands for the last layer's output."""
    kind = target.model.metadata("general.architecture")
    layers = range(int(C.llama_model_n_layer(target.model.handle))) if kind in TARGETS else ()
    return (*([OUTPUT] if kind in BLOCK_TARGETS else []), *layers)


def width_of(target: LlamaBackend) -> int:
    """Return the number of floats in a row of one of the target's layers."""
    return int(C.llama_model_n_embd(target.model.handle))
