"""Start llama.cpp, redirect its log, and load models from files."""

from __future__ import annotations

import ctypes
import functools
import logging
import os
import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import llama_cpp.llama_cpp as _untyped

from server.errors import StartupError
from server.llama.cuda_graphs import each_has_its_own, forgo_graphs
from server.llama.devices import GPU, INTEGRATED, borrow, devices, own_gpus, tensor_overrides
from server.llama.load_progress import LoadProgress
from server.llama.options import LlamaOptions, Override, Rope, Weights
from server.llama.parts import parts
from server.llama.tensors import tensors, trained_context, unmatched
from server.stop_signals import leave_if_requested

C: Any = _untyped  # ctypes bindings: their types are in the C header, not in Python
logger = logging.getLogger("duo.llama")

MOST_CTX = 8192  # tokens: the default context of a slot, since trained contexts may take all memory
COMPRESSED = ("deepseek4",)  # architectures: llama.cpp ends the process if it copies some of their cells
# Architectures of which llama.cpp evaluates several prediction blocks; with others it ends the process.
CHAINED = ("hy_v3", "mimo2", "step35")
# Rows evaluated at once on a CPU without flash attention: attention scores take four bytes for each row, cell
# and head. 64 and 512 are as quick (docs/adr/0012); 512 takes four times the memory.
ROWS_ON_CPU = 128
# Maximum sequences of a context without flash attention on a CPU: those of a lead with 16 slots. Without
# flash attention a row is scored against the cells of all sequences. With it, a row is scored only against
# the cells of its own sequence, but each takes about 13 times as long (docs/adr/0012). Half: steps of 12
# streams take 1.1 times as long; twice: steps of 32 streams take 1.2 times as long.
MOST_SEQS_ON_CPU = 72
_SPLIT_MODES = {"none": 0, "layer": 1, "row": 2, "tensor": 3}
_LOAD_MODES = {(False, False): 0, (True, False): 1, (False, True): 2, (True, True): 3}  # by mmap, mlock
_FILE_TYPE = "LLAMA_FTYPE_"


@functools.cache
def start_library() -> None:
    """Initialise llama.cpp once and send its log to logging."""
    C.llama_log_set(log_line, None)
    C.llama_backend_init()


_first_error = ""
_LEVELS = {1: logging.DEBUG, 2: logging.DEBUG, 3: logging.INFO, 4: logging.WARNING}


@C.llama_log_callback
def log_line(level: int, text: bytes, _: object) -> None:
    global _first_error
    line = text.decode(errors="replace").strip()
    if level == 4 and line:
        _first_error = _first_error or line
    if "CUDA error" in line:  # ggml ends the process next; the line has the reason, later ones only the place
        print(line, file=sys.stderr, flush=True)
    else:
        logger.log(min(_LEVELS.get(level, logging.DEBUG), logging.INFO), line)


def forget_errors() -> None:
    global _first_error
    _first_error = ""


def first_error() -> str:
    """Return the first error that llama.cpp logged since forget_errors(), in brackets; "" without any.

    Later errors only say that something failed, not why.
    """
    return f" ({_first_error})" if _first_error else ""


def hidden_rows(who_needs: str, instead: str) -> Any:
    """Return the library whose functions give hidden rows.

    Args:
        who_needs: Words of the error message about who needs them, such as "its block needs".
        instead: Alternative that the message advises besides another build.

    Raises:
        StartupError: This build lacks them.
    """
    try:
        import llama_cpp.llama_cpp_ext as functions
    except (ImportError, AttributeError) as error:
        why = f"this llama-cpp-python gives no hidden rows, which {who_needs} ({error})"
        raise StartupError(f"{why}: install that of duo's requirements, or {instead}") from error
    return functions


def has_gpu() -> bool:
    """Return True if this build of llama.cpp can use a GPU of this machine."""
    start_library()
    return bool(C.llama_supports_gpu_offload())


def free_memory_of_gpus() -> list[int]:
    """Return the free bytes of each GPU of this machine, in the order of --main-gpu.

    Integrated GPUs are included only if there are no others.
    """
    if not has_gpu():
        return []
    found: dict[int, list[int]] = {}  # by type
    for device in (one for one in devices() if not one.borrowed):
        found.setdefault(device.type, []).append(device.free)
    return found.get(GPU) or found.get(INTEGRATED, [])


def computes_elsewhere(weights: Weights) -> bool:
    """Return True if a GPU or a lender computes layers; builds without GPUs can also use lenders."""
    return bool(weights.n_gpu_layers) and has_gpu() and (bool(weights.rpc) or bool(free_memory_of_gpus()))


def physical_rows(context: Any) -> int:
    """Return the maximum rows that a context evaluates at once (n_ubatch)."""
    return int(C.llama_n_ubatch(context))


def is_open(options: LlamaOptions) -> bool:
    """Return True if duo may choose whether to use flash attention (docs/adr/0012).

    There are three conditions: the options do not decide it; the CPU computes attention, for at most
    MOST_SEQS_ON_CPU sequences; and the cache's values are not quantised, which would need flash attention.
    """
    quantised = options.cache_type_v not in ("f32", "f16", "bf16")
    if options.flash_attention != "auto" or quantised or options.n_seqs > MOST_SEQS_ON_CPU:
        return False
    return not computes_elsewhere(options.weights)


def with_attention(options: LlamaOptions, attention: Literal["on", "off"]) -> LlamaOptions:
    """Return the options with flash attention set to `attention`, and with n_ubatch set if it was not."""
    n_ubatch = options.n_ubatch or min(ROWS_ON_CPU, options.n_batch)
    return replace(options, flash_attention=attention, n_ubatch=n_ubatch)


def default_cells(
    path: Path, n_sessions: int, weights: Weights | None = None, rope: Rope | None = None
) -> int:
    """Return the number of KV cells for n_sessions whole contexts of at most MOST_CTX tokens each."""
    start_library()  # its log goes to logging from here on
    changed = weights.overrides if weights else ()
    trained = trained_context(path, {override.key: override.value for override in changed})
    if not trained:  # the file does not say: llama.cpp may know, or says why it cannot load the model
        with closing(LoadedModel(path, Weights(overrides=changed), vocab_only=True)) as model:
            trained = model.longest(Rope())
    return min(int(trained * (rope or Rope()).stretch), MOST_CTX) * n_sessions


class LoadedModel:
    """A model's weights and adapters, which contexts may share. Owns them until close()."""

    def __init__(self, path: Path, weights: Weights, *, vocab_only: bool = False) -> None:
        """Load a model, or its vocabulary only. Raises StartupError."""
        start_library()
        first = parts(path)[0]
        if weights.rpc:
            borrow(weights.rpc)
        self._params = _model_params(weights, vocab_only)  # kept, since llama.cpp reads its arrays later too
        self._overrides = weights.overrides
        self._params.progress_callback = C.llama_progress_callback(LoadProgress(first.stem))
        forget_errors()
        self.handle: Any = C.llama_model_load_from_file(os.fsencode(first), self._params)
        if not self.handle:
            leave_if_requested()
            why = "is it complete, and its architecture known?"
            if ".nextn." in first_error():
                why = "its prediction block is of another model: convert it again, or without the block"
            raise StartupError(f"llama.cpp cannot load {path}{first_error()}: {why}")
        for pattern in unmatched(list(tensors(path)), weights.places) if weights.places else ():
            logger.warning("no tensor of %s matches %s: check --override-tensor or --cpu-moe", path, pattern)
        self._trained = int(C.llama_model_n_ctx_train(self.handle))  # contexts with other positions change it
        self.n_params = int(C.llama_model_n_params(self.handle))
        self.n_bytes = int(C.llama_model_size(self.handle))  # of the weights
        self.n_blocks = self._count_blocks(path) if weights.mtp else 0
        self.n_vocab = int(C.llama_vocab_n_tokens(C.llama_model_get_vocab(self.handle)))
        # True: decodes of each shape have a recorded graph of their own
        self.has_own_graphs = each_has_its_own(weights, whole=self.is_whole(weights.n_gpu_layers))
        if not (vocab_only or self.has_own_graphs) and computes_elsewhere(weights):
            forgo_graphs(path)
        self._scales = [adapter.scale for adapter in weights.adapters]
        try:
            self._adapters = [self._load_adapter(adapter.path) for adapter in weights.adapters]
        except BaseException:
            self.close()
            raise

    def _count_blocks(self, path: Path) -> int:
        """Return the number of the files' prediction blocks that llama.cpp can evaluate.

        If the metadata declare blocks that the files lack, llama.cpp ends the process at their first use.
        """
        n_blocks, n_layers = (f(self.handle) for f in (C.llama_model_n_layer_nextn, C.llama_model_n_layer))
        architecture = self.metadata("general.architecture")
        if n_blocks > 1 and architecture not in CHAINED:
            logger.warning(
                "llama.cpp cannot evaluate the %d prediction blocks of %s: they do not draft",
                n_blocks,
                architecture,
            )
            return 0
        name = f"blk.{n_layers}.nextn.eh_proj.weight"
        if n_blocks and name not in tensors(path):
            logger.warning(
                "%s announces prediction blocks but was converted without: they cannot draft", path
            )
            return 0
        return int(n_blocks)

    def is_whole(self, n_layers: int) -> bool:
        """Return True if n_layers on the GPU are all of the model's layers; -1 means all."""
        return n_layers < 0 or n_layers >= int(C.llama_model_n_layer(self.handle))

    def longest(self, rope: Rope) -> int:
        """Return the maximum number of positions in a sequence, given this scaling."""
        trained = self._trained
        if not trained:  # llama.cpp does not know it if only the vocabulary was loaded
            key = f"{self.metadata('general.architecture')}.context_length"
            instead = {override.key: override.value for override in self._overrides}
            trained = int(instead.get(key) or self.metadata(key) or 0)
        return int(trained * rope.stretch)

    def metadata(self, key: str) -> str | None:
        """Return the value of a metadata key as text, None if the model has no such key."""
        buffer = ctypes.create_string_buffer(1024)
        n = C.llama_model_meta_val_str(self.handle, key.encode(), buffer, len(buffer))
        return buffer.value.decode(errors="replace") if n >= 0 else None

    @property
    def quantization(self) -> str | None:
        """Return the type of most weights as llama.cpp names it, such as Q4_K_M."""
        kind = self.metadata("general.file_type")
        return _file_types().get(int(kind)) if kind and kind.isdigit() else None

    @property
    def description(self) -> str:
        buffer = ctypes.create_string_buffer(256)
        C.llama_model_desc(self.handle, buffer, 256)
        return buffer.value.decode(errors="replace").replace(" ?B", "")  # a size it has no name for

    def context(self, params: Any) -> Any:
        """Return a context with the adapters applied, None if llama.cpp makes none. Raises StartupError."""
        forget_errors()
        context = C.llama_init_from_model(self.handle, params)
        n = len(self._adapters) if context else 0
        handles = (C.llama_adapter_lora_p_ctypes * n)(*self._adapters)
        if n and C.llama_set_adapters_lora(context, handles, n, (ctypes.c_float * n)(*self._scales)):
            C.llama_free(context)
            raise StartupError(f"llama.cpp cannot use the LoRA adapters{first_error()}")
        return context

    def close(self) -> None:
        if self.handle:
            C.llama_model_free(self.handle)  # and its adapters
            self.handle = None

    def _load_adapter(self, path: Path) -> Any:
        if not path.is_file():
            raise StartupError(f"no LoRA adapter at {path}: give the path of a GGUF file with --lora")
        forget_errors()
        adapter = C.llama_adapter_lora_init(self.handle, os.fsencode(path))
        if not adapter:
            raise StartupError(
                f"llama.cpp cannot load the LoRA adapter {path}{first_error()}: is it one for this model?"
            )
        return adapter


def _model_params(weights: Weights, vocab_only: bool) -> Any:
    """Return llama_model_params, which own the arrays they point to. Raises StartupError."""
    params = C.llama_model_default_params()
    params.vocab_only = vocab_only
    params.n_gpu_layers = weights.n_gpu_layers
    params.split_mode = _SPLIT_MODES[weights.split_mode]
    params.main_gpu = weights.main_gpu
    params.load_mtp = weights.mtp
    params.load_mode = _LOAD_MODES[weights.mmap, weights.mlock]
    if weights.tensor_split:
        n, most = len(weights.tensor_split), int(C.llama_max_devices())
        if n > most:
            raise StartupError(f"--tensor-split: {n} shares, but at most {most} devices")
        params.tensor_split = (ctypes.c_float * most)(*weights.tensor_split)
    if not weights.rpc and (own := own_gpus()) is not None:
        params.devices = ctypes.cast(own, ctypes.c_void_p)
        params.own_gpus = own  # it must live as long
    if weights.places:
        params.places = places = tensor_overrides(weights.places)  # it must live as long
        params.tensor_buft_overrides = ctypes.cast(places, ctypes.c_void_p)
    if weights.overrides:
        params.kv_overrides = _c_overrides(weights.overrides)
    return params


def tokenize(vocab: Any, text: str, *, begin: bool, special: bool) -> list[int]:
    """Return the ids of a text.

    begin: Add the tokens that the model expects around a text, such as BOS. special: Turn texts of control
    tokens into control tokens.
    """
    data = text.encode()
    # enough room except with odd vocabularies; few sizes, since each makes a ctypes type for good
    room = 1 << (len(data) + 8).bit_length()
    buffer = (ctypes.c_int32 * room)()
    n = C.llama_tokenize(vocab, data, len(data), buffer, room, begin, special)
    if n < 0:
        buffer = (ctypes.c_int32 * -n)()
        n = C.llama_tokenize(vocab, data, len(data), buffer, -n, begin, special)
    return list(buffer[:n])


@functools.cache
def _file_types() -> dict[int, str]:
    names = [name for name in dir(_untyped) if name.startswith(_FILE_TYPE)]
    return {
        int(getattr(C, n)): n.removeprefix(_FILE_TYPE).split("_", 1)[1] for n in names if n.count("_") > 2
    }


def _c_overrides(overrides: Sequence[Override]) -> Any:
    """Return overrides as a C array that ends with an empty key."""
    array = (C.llama_model_kv_override * (len(overrides) + 1))()
    for entry, override in zip(array, overrides, strict=False):
        entry.key = override.key.encode()
        match override.value:
            case bool() as value:
                entry.tag, entry.value.val_bool = C.LLAMA_KV_OVERRIDE_TYPE_BOOL, value
            case int() as value:
                entry.tag, entry.value.val_i64 = C.LLAMA_KV_OVERRIDE_TYPE_INT, value
            case float() as value:
                entry.tag, entry.value.val_f64 = C.LLAMA_KV_OVERRIDE_TYPE_FLOAT, value
            case str() as value:
                entry.tag, entry.value.val_str = C.LLAMA_KV_OVERRIDE_TYPE_STR, value.encode()
    return array
