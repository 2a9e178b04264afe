"""The real model, over llama-cpp-python's low-level API.

Every C handle has one owner here that frees it. The C structures are those of the pinned release.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np

from server.errors import BackendError, StartupError
from server.llama.backend import Batch, FillInMiddle, Logits
from server.llama.cuts import Cuts
from server.llama.library import (
    C,
    LoadedModel,
    complaint,
    computes_elsewhere,
    context_params,
    settled,
    tokenize,
)
from server.llama.options import LlamaOptions
from server.llama.parts import model_name


class LlamaVocabulary:
    """Implements Vocabulary over a loaded model, as long as that is open."""

    def __init__(self, model: Any) -> None:
        self._vocab = C.llama_model_get_vocab(model)
        self.size = int(C.llama_vocab_n_tokens(self._vocab))
        self.bos = _token_or_none(C.llama_vocab_bos(self._vocab))
        self.eos = _token_or_none(C.llama_vocab_eos(self._vocab))
        self.eog = frozenset(t for t in range(self.size) if C.llama_vocab_is_eog(self._vocab, t))
        self.add_bos = bool(C.llama_vocab_get_add_bos(self._vocab))
        of = (C.llama_vocab_fim_pre, C.llama_vocab_fim_suf, C.llama_vocab_fim_mid)
        prefix, suffix, middle = (token(self._vocab) for token in of)
        whole = (token(self._vocab) for token in (C.llama_vocab_fim_rep, C.llama_vocab_fim_sep))
        repository, file = (id if id >= 0 else None for id in whole)
        fim = FillInMiddle(prefix, suffix, middle, repository, file)
        self.fim = fim if min(prefix, suffix, middle) >= 0 else None
        self.piece = functools.cache(self._piece)
        texts = [C.llama_vocab_get_text(self._vocab, token) for token in range(self.size)]
        self.longest = self._longest(texts)
        self._cuts = {special: self._cuts_at(texts, special) for special in (False, True)}

    def _longest(self, texts: list[bytes]) -> int:
        """texts: of all tokens, as the model file has them: none is shorter than the token's piece."""
        longest = 0
        for token in sorted(range(self.size), key=lambda token: -len(texts[token])):
            if len(texts[token]) <= longest:
                break
            longest = max(longest, len(self.piece(token, special=True)))
        return longest

    def _cuts_at(self, texts: list[bytes], special: bool) -> Cuts:
        """special: control tokens count."""
        found = C.LLAMA_TOKEN_ATTR_USER_DEFINED
        if special:
            found |= C.LLAMA_TOKEN_ATTR_CONTROL | C.LLAMA_TOKEN_ATTR_UNKNOWN
        attributes = [C.llama_vocab_get_attr(self._vocab, token) for token in range(self.size)]
        marks = [
            (texts[token].decode(errors="replace"), attribute)
            for token, attribute in enumerate(attributes)
            if attribute & found
        ]
        safe = [text for text, attribute in marks if not attribute & C.LLAMA_TOKEN_ATTR_LSTRIP]
        return Cuts([text for text, _ in marks], safe)

    def tokenize(self, text: str, *, special: bool) -> list[int]:
        tokens: list[int] = []
        for piece in self._cuts[special].pieces(text):
            tokens += tokenize(self._vocab, piece, begin=False, special=special)
        return tokens

    def _piece(self, token: int, *, special: bool = False) -> bytes:
        buffer = ctypes.create_string_buffer(64)
        n = C.llama_token_to_piece(self._vocab, token, buffer, 64, 0, special)
        if n < 0:
            buffer = ctypes.create_string_buffer(-n)
            n = C.llama_token_to_piece(self._vocab, token, buffer, -n, 0, special)
        return buffer.raw[:n]


def _template(model: Any, name: bytes | None) -> str | None:
    """The model's chat template, or the one of this name beside it."""
    text = C.llama_model_chat_template(model, name)
    return text.decode() if text else None


def _divides(model: Any) -> bool:
    """Whether any part of a sequence can be copied to a cache of its own: its saved state is all of it."""
    stateful = C.llama_model_is_recurrent(model) or C.llama_model_is_hybrid(model)
    return not stateful and not C.llama_model_n_swa(model)


def _token_or_none(token: int) -> int | None:
    return int(token) if token >= 0 else None


COMPRESSED = ("deepseek4",)  # architectures: llama.cpp ends the process at a copy of some cells


class LlamaBatch:
    """The C arrays of a llama_batch, filled from a Batch without a Python loop."""

    def __init__(self, capacity: int) -> None:
        self._tokens = (ctypes.c_int32 * capacity)()
        self._positions = (ctypes.c_int32 * capacity)()
        self._seqs = (ctypes.c_int32 * capacity)()
        self._wanted = (ctypes.c_int8 * capacity)()
        self._seq_counts = (ctypes.c_int32 * capacity)(*[1] * capacity)
        start, pointer = ctypes.addressof(self._seqs), ctypes.POINTER(ctypes.c_int32)
        self._own = range(start, start + ctypes.sizeof(self._seqs), ctypes.sizeof(ctypes.c_int32))
        self._seq_addresses = (ctypes.c_size_t * capacity)(*self._own)
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
        """Point rows of several sequences at theirs, after undoing that for the last batch."""
        for row in self._shared:
            self._seq_counts[row] = 1
            self._seq_addresses[row] = self._own[row]
        self._shared = {}
        for row, seqs in batch.shared.items():
            array = self._shared[row] = (ctypes.c_int32 * len(seqs))(*seqs)
            self._seq_counts[row] = len(seqs)
            self._seq_addresses[row] = ctypes.addressof(array)


class LlamaBackend:
    """Implements Backend. Raises StartupError when the model cannot be loaded or its context not created."""

    def __init__(self, options: LlamaOptions) -> None:
        self.model = LoadedModel(options.model_path, options.weights)
        self.options = options = settled(options)
        self._model = self.model.handle
        self._context: Any = None
        try:
            self._open(options)
        except BaseException:
            self.close()
            raise

    def _open(self, options: LlamaOptions) -> None:
        model = self._model
        self.name = model_name(options.model_path)
        if C.llama_model_has_encoder(model) or not C.llama_model_has_decoder(model):
            raise StartupError(
                f"{options.model_path} is not a decoder-only model: duo cannot generate with it"
            )
        if not _divides(model):
            self.options = options = replace(options, n_streams=0)
        params = context_params(options)
        params.swa_full = True  # a trimmed sequence needs cells that its sliding window had passed
        if C.llama_model_n_swa(model):  # between parts of a decode llama.cpp gives away what guesses passed
            params.n_batch = params.n_ubatch = max(params.n_ubatch, params.n_seq_max)
        self._context = self.model.context(params)
        if not self._context:
            raise StartupError(
                f"llama.cpp makes no context of {options.n_cells} tokens{complaint()}: perhaps a smaller "
                "--ctx-size fits, or another --cache-type-v or --flash-attn"
            )
        self._memory = C.llama_get_memory(self._context)
        self.vocab = LlamaVocabulary(model)
        self.n_cells = int(C.llama_n_ctx(self._context))
        self.n_ctx = min(self.model.longest(options.rope), self.n_cells // max(1, options.n_streams))
        self.n_seqs = options.n_streams or options.n_seqs
        self.n_batch = int(C.llama_n_batch(self._context))
        self.n_params, self.n_bytes = self.model.n_params, self.model.n_bytes
        self.chat_template = _template(model, None)
        self.tool_template = _template(model, b"tool_use")
        self.description = self.model.description
        self._rows = LlamaBatch(self.n_batch)
        self.can_trim = False
        elsewhere = computes_elsewhere(options.weights)
        self.overlaps = elsewhere and self.model.is_whole(options.weights.n_gpu_layers)
        with ThreadPoolExecutor(1) as aside:  # which ends, and with it the threads of OpenMP that are its own
            self.can_trim = aside.submit(self._forgets).result()
        self.can_copy = self.model.metadata("general.architecture") not in COMPRESSED
        self.can_share = not options.n_streams
        self.can_shift = self.can_trim and bool(C.llama_memory_can_shift(self._memory))

    def _forgets(self) -> bool:
        """Try whether a sequence can be trimmed: it depends on the memory that llama.cpp chose. The KV cache
        is left empty. Raises StartupError."""
        for position in range(2):
            batch = Batch()
            batch.extend(0, position, [self.vocab.bos or 0], 0)
            try:
                self.decode(batch)
            except BackendError as error:
                raise StartupError(
                    f"{self.name} cannot be evaluated: {error.message}{complaint()}"
                ) from error
        forgotten = bool(C.llama_memory_seq_rm(self._memory, 0, 1, -1))
        C.llama_memory_clear(self._memory, True)
        return forgotten

    def decode(self, batch: Batch) -> Logits:
        logits = self.start(batch)
        if batch.meanwhile is not None and self.overlaps:
            batch.meanwhile()
        return logits()

    def start(self, batch: Batch) -> Callable[[], Logits]:
        self._rows.fill(batch)
        status = int(C.llama_decode(self._context, self._rows.batch))
        if status:  # 1: there are too few cells
            reason = "the KV cache is full" if status == 1 else f"llama_decode returned {status}"
            raise BackendError(f"{reason} ({len(batch)} rows)")
        return functools.partial(self._logits, sum(batch.wanted))

    def _logits(self, n_rows: int) -> Logits:
        """Waits for a GPU."""
        if not n_rows:
            return np.empty((0, self.vocab.size), dtype=np.float32)
        address = ctypes.cast(C.llama_get_logits(self._context), ctypes.c_void_p).value
        assert address is not None
        values: Any = (ctypes.c_float * (n_rows * self.vocab.size)).from_address(address)
        return np.frombuffer(values, dtype=np.float32).reshape(n_rows, self.vocab.size)

    def trim(self, seq: int, length: int) -> None:
        if not C.llama_memory_seq_rm(self._memory, seq, length, -1):
            raise BackendError("this model's sequences cannot be trimmed")

    def length(self, seq: int) -> int:
        return int(C.llama_memory_seq_pos_max(self._memory, seq)) + 1

    def intact(self, seq: int, length: int) -> bool:
        """Even with swa_full llama.cpp reuses cells that the window has passed; it tells where the rest
        begins."""
        window = int(C.llama_model_n_swa(self._model))
        if not window or self.length(seq) <= length:
            return True
        return C.llama_memory_seq_pos_min(self._memory, seq) <= max(0, length + 1 - window)

    def save(self, seq: int) -> bytes:
        size = int(C.llama_state_seq_get_size(self._context, seq))
        data = _uninitialised(None, size)  # clearing and copying it would take longer than filling it
        start = ctypes.cast(ctypes.c_char_p(data), ctypes.POINTER(ctypes.c_uint8))
        if not size or int(C.llama_state_seq_get_data(self._context, start, size, seq)) != size:
            raise BackendError(f"the state of sequence {seq} cannot be had")
        return data

    def load(self, seq: int, data: bytes) -> None:
        start = ctypes.cast(ctypes.c_char_p(data), ctypes.POINTER(ctypes.c_uint8))  # only read
        if int(C.llama_state_seq_set_data(self._context, start, len(data), seq)) != len(data):
            raise BackendError("it does not fit this model, or the KV cache is full")

    def copy(self, source: int, target: int, start: int, end: int) -> None:
        if not self.options.n_streams:
            C.llama_memory_seq_cp(self._memory, source, target, start, end)
            return
        self.trim(target, 0)  # between streams llama.cpp copies whole ones only, and not at once
        self.load(target, self.save(source))
        self.trim(target, end)

    def shift(self, seq: int, start: int, end: int) -> None:
        if not C.llama_memory_seq_rm(self._memory, seq, start, end):
            raise BackendError("this model's sequences cannot be shifted")
        C.llama_memory_seq_add(self._memory, seq, end, -1, start - end)

    def close(self) -> None:
        if self._context:
            C.llama_free(self._context)
            self._context = None
        self.model.close()


_uninitialised = ctypes.pythonapi.PyBytes_FromStringAndSize  # its result must be filled at once
_uninitialised.restype = ctypes.py_object
_uninitialised.argtypes = (ctypes.c_void_p, ctypes.c_ssize_t)
