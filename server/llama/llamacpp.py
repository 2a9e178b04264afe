"""The real model, over llama-cpp-python's low-level API. The only file that imports llama_cpp.

Every C handle has one owner here that frees it. The C structures are those of the pinned release.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import llama_cpp.llama_cpp as _untyped
import numpy as np

from server.errors import BackendError, StartupError
from server.llama.backend import Batch, Logits

C: Any = _untyped  # ctypes bindings: their types are in the C header, not in Python
logger = logging.getLogger("duo.llama")

MOST_CTX = 8192
ALL_LAYERS = -1
"""n_gpu_layers: offload every layer where there is a GPU."""


@dataclass(frozen=True, slots=True)
class LlamaOptions:
    """n_cells: KV cells shared by all sequences; llama.cpp rounds them up. kv_f32 without flash_attention is
    slower and closest to exact arithmetic; flash_attention is used where the backend has it."""

    model_path: Path
    n_cells: int
    n_seqs: int
    n_batch: int = 512
    n_threads: int = 1
    n_gpu_layers: int = ALL_LAYERS
    kv_f32: bool = False
    flash_attention: bool = True


@functools.cache
def _start_library() -> None:
    """Initialise llama.cpp once and send its log to logging."""
    C.llama_log_set(_log, None)
    C.llama_backend_init()


_last_error = ""
_LEVELS = {1: logging.DEBUG, 2: logging.DEBUG, 3: logging.INFO, 4: logging.WARNING}


@C.llama_log_callback
def _log(level: int, text: bytes, _: object) -> None:
    global _last_error
    line = text.decode(errors="replace").strip()
    if level == 4 and line:
        _last_error = line
    logger.log(min(_LEVELS.get(level, logging.DEBUG), logging.INFO), line)


def default_cells(path: Path, n_sessions: int) -> int:
    """KV cells for that many full conversations of MOST_CTX tokens, or of the context the model was trained
    with if that is shorter. Does not load the weights. Raises StartupError."""
    params = C.llama_model_default_params()
    params.vocab_only = True
    model = _load(path, params)
    try:
        return min(int(C.llama_model_n_ctx_train(model)), MOST_CTX) * n_sessions
    finally:
        C.llama_model_free(model)


def has_gpu() -> bool:
    """Whether this build of llama.cpp can put layers on a GPU that is there."""
    _start_library()
    return bool(C.llama_supports_gpu_offload())


def _load(path: Path, params: Any) -> Any:
    _start_library()
    if not path.is_file():
        raise StartupError(f"no model file at {path}: give the path of a GGUF file with --model")
    with path.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise StartupError(f"{path} is not a GGUF file: give the path of a GGUF model with --model")
    global _last_error
    _last_error = ""
    model = C.llama_model_load_from_file(os.fsencode(path), params)
    if not model:
        reason = f" ({_last_error})" if _last_error else ""
        raise StartupError(
            f"llama.cpp cannot load {path}{reason}: is the file complete, and its architecture known?"
        )
    return model


class LlamaVocabulary:
    """Implements Vocabulary over a loaded model; valid as long as its model."""

    def __init__(self, model: Any) -> None:
        self._vocab = C.llama_model_get_vocab(model)
        self.size = int(C.llama_vocab_n_tokens(self._vocab))
        self.bos = _token_or_none(C.llama_vocab_bos(self._vocab))
        self.eos = _token_or_none(C.llama_vocab_eos(self._vocab))
        self.eog = frozenset(t for t in range(self.size) if C.llama_vocab_is_eog(self._vocab, t))
        self.add_bos = bool(C.llama_vocab_get_add_bos(self._vocab))
        self._pieces: dict[tuple[int, bool], bytes] = {}

    def tokenize(self, text: str, *, special: bool) -> list[int]:
        data = text.encode()
        room = len(data) + 8
        buffer = (ctypes.c_int32 * room)()
        n = C.llama_tokenize(self._vocab, data, len(data), buffer, room, False, special)
        if n < 0:
            buffer = (ctypes.c_int32 * -n)()
            n = C.llama_tokenize(self._vocab, data, len(data), buffer, -n, False, special)
        return list(buffer[:n])

    def piece(self, token: int, *, special: bool = False) -> bytes:
        piece = self._pieces.get((token, special))
        if piece is None:
            piece = self._pieces[token, special] = self._read_piece(token, special)
        return piece

    def _read_piece(self, token: int, special: bool) -> bytes:
        buffer = ctypes.create_string_buffer(64)
        n = C.llama_token_to_piece(self._vocab, token, buffer, 64, 0, special)
        if n < 0:
            buffer = ctypes.create_string_buffer(-n)
            n = C.llama_token_to_piece(self._vocab, token, buffer, -n, 0, special)
        return buffer.raw[:n]


def _token_or_none(token: int) -> int | None:
    return int(token) if token >= 0 else None


class _Rows:
    """The C arrays of one llama_batch, filled from a Batch without a Python loop."""

    def __init__(self, capacity: int) -> None:
        self._tokens = (ctypes.c_int32 * capacity)()
        self._positions = (ctypes.c_int32 * capacity)()
        self._seqs = (ctypes.c_int32 * capacity)()
        self._wanted = (ctypes.c_int8 * capacity)()
        self._seq_counts = (ctypes.c_int32 * capacity)(*[1] * capacity)
        self._base, self._width = ctypes.addressof(self._seqs), ctypes.sizeof(ctypes.c_int32)
        pointer = ctypes.POINTER(ctypes.c_int32)
        self._seq_addresses = (ctypes.c_size_t * capacity)(
            *[self._base + i * self._width for i in range(capacity)]
        )
        self._shared: dict[int, Any] = {}  # rows with sequences of their own, by index
        self.batch = C.llama_batch(
            n_tokens=0,
            token=ctypes.cast(self._tokens, pointer),
            embd=None,
            pos=ctypes.cast(self._positions, pointer),
            n_seq_id=ctypes.cast(self._seq_counts, pointer),
            seq_id=ctypes.cast(self._seq_addresses, ctypes.POINTER(pointer)),
            logits=ctypes.cast(self._wanted, ctypes.POINTER(ctypes.c_int8)),
        )

    def fill(self, batch: Batch) -> None:
        n = len(batch)
        self._tokens[:n] = batch.tokens
        self._positions[:n] = batch.positions
        self._seqs[:n] = batch.seqs
        self._wanted[:n] = batch.wanted
        self.batch.n_tokens = n
        if batch.shared or self._shared:
            self._share(batch)

    def _share(self, batch: Batch) -> None:
        """Point the rows of several sequences at theirs, and those of the last batch back at their one."""
        for row in self._shared:
            self._seq_counts[row] = 1
            self._seq_addresses[row] = self._base + row * self._width
        self._shared = {}
        for row, seqs in batch.shared.items():
            array = self._shared[row] = (ctypes.c_int32 * len(seqs))(*seqs)
            self._seq_counts[row] = len(seqs)
            self._seq_addresses[row] = ctypes.addressof(array)


class LlamaBackend:
    """Implements Backend. Raises StartupError when the model cannot be loaded or its context not created."""

    def __init__(self, options: LlamaOptions) -> None:
        params = C.llama_model_default_params()
        params.n_gpu_layers = options.n_gpu_layers
        self._model = _load(options.model_path, params)
        self._context: Any = None
        try:
            self._open(options)
        except BaseException:
            self.close()
            raise

    def _open(self, options: LlamaOptions) -> None:
        model = self._model
        self.name = options.model_path.stem
        if C.llama_model_has_encoder(model) or not C.llama_model_has_decoder(model):
            raise StartupError(
                f"{options.model_path} is not a decoder-only model: duo cannot generate with it"
            )
        self._context = C.llama_init_from_model(model, _context_params(options))
        if not self._context:
            raise StartupError(
                f"no memory for a context of {options.n_cells} tokens: try a smaller --ctx-size"
            )
        self._memory = C.llama_get_memory(self._context)
        self.vocab = LlamaVocabulary(model)
        self.n_cells = int(C.llama_n_ctx(self._context))
        self.n_ctx = min(int(C.llama_model_n_ctx_train(model)), self.n_cells)
        self.n_seqs = options.n_seqs
        self.n_batch = int(C.llama_n_batch(self._context))
        self.n_params = int(C.llama_model_n_params(model))
        self.n_bytes = int(C.llama_model_size(model))
        self.can_trim = not (C.llama_model_is_recurrent(model) or C.llama_model_is_hybrid(model))
        kv, attention = ("f16", "f32")[options.kv_f32], ("plain", "flash")[options.flash_attention]
        self.state_format = f"{kv}/{attention}"
        self.can_shift = self.can_trim and bool(C.llama_memory_can_shift(self._memory))
        template = C.llama_model_chat_template(model, None)
        self.chat_template: str | None = template.decode() if template else None
        self.description = self._describe()
        self._rows = _Rows(self.n_batch)

    def decode(self, batch: Batch) -> Logits:
        self._rows.fill(batch)
        status = C.llama_decode(self._context, self._rows.batch)
        if status:
            reason = "the KV cache is full" if status == 1 else f"llama_decode returned {status}"
            raise BackendError(f"{reason} ({len(batch)} rows)")
        n_rows = sum(batch.wanted)
        if not n_rows:
            return np.empty((0, self.vocab.size), dtype=np.float32)
        address = ctypes.cast(C.llama_get_logits(self._context), ctypes.c_void_p).value
        assert address is not None
        values: Any = (ctypes.c_float * (n_rows * self.vocab.size)).from_address(address)
        return np.frombuffer(values, dtype=np.float32).reshape(n_rows, self.vocab.size)

    def trim(self, seq: int, length: int) -> None:
        if not C.llama_memory_seq_rm(self._memory, seq, length, -1):
            raise BackendError("this model's sequences cannot be trimmed")

    def save(self, seq: int) -> bytes:
        size = int(C.llama_state_seq_get_size(self._context, seq))
        buffer = (ctypes.c_uint8 * size)()
        if not size or int(C.llama_state_seq_get_data(self._context, buffer, size, seq)) != size:
            raise BackendError(f"the state of sequence {seq} cannot be had")
        return bytes(buffer)

    def load(self, seq: int, data: bytes) -> None:
        start = ctypes.cast(ctypes.c_char_p(data), ctypes.POINTER(ctypes.c_uint8))  # only read
        if int(C.llama_state_seq_set_data(self._context, start, len(data), seq)) != len(data):
            raise BackendError("it does not fit this model, or the KV cache is full")

    def copy(self, source: int, target: int, start: int, end: int) -> None:
        C.llama_memory_seq_cp(self._memory, source, target, start, end)

    def shift(self, seq: int, start: int, end: int) -> None:
        if not C.llama_memory_seq_rm(self._memory, seq, start, end):
            raise BackendError("this model's sequences cannot be shifted")
        C.llama_memory_seq_add(self._memory, seq, end, -1, start - end)

    def close(self) -> None:
        if self._context:
            C.llama_free(self._context)
            self._context = None
        if self._model:
            C.llama_model_free(self._model)
            self._model = None

    def _describe(self) -> str:
        buffer = ctypes.create_string_buffer(256)
        C.llama_model_desc(self._model, buffer, 256)
        return buffer.value.decode(errors="replace").replace(" ?B", "")  # a size it has no name for


def _context_params(options: LlamaOptions) -> Any:
    params = C.llama_context_default_params()
    params.n_ctx = options.n_cells
    params.n_batch = options.n_batch
    params.n_ubatch = options.n_batch
    params.n_seq_max = options.n_seqs
    params.kv_unified = True
    params.swa_full = True  # a rejected draft must be forgettable
    if options.kv_f32:
        params.type_k = params.type_v = C.GGML_TYPE_F32
    if not options.flash_attention:
        params.flash_attn_type = C.LLAMA_FLASH_ATTN_TYPE_DISABLED
    params.n_threads = options.n_threads
    params.n_threads_batch = options.n_threads
    return params
