"""A context of llama.cpp: rows evaluated on a KV cache."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from server.errors import BackendError
from server.llama.backend import Batch, Embeddings, Hidden, Logits
from server.llama.graph_keys import MAX_DECODE_ROWS, GraphKeys
from server.llama.library import COMPRESSED, C, LoadedModel
from server.llama.threads import Threads
from server.llama.windows import CHUNKED, Windows

FLOATS = ctypes.POINTER(ctypes.c_float)
_INTS = ctypes.POINTER(ctypes.c_int32)


class LlamaBatch:
    """C arrays of a llama_batch, filled from a Batch without a Python loop."""

    def __init__(self, capacity: int) -> None:
        self._tokens = (ctypes.c_int32 * capacity)()
        self._positions = (ctypes.c_int32 * capacity)()
        self._seqs = (ctypes.c_int32 * capacity)()
        self._wanted = (ctypes.c_int8 * capacity)()
        self._seq_counts = (ctypes.c_int32 * capacity)(*[1] * capacity)
        start = ctypes.addressof(self._seqs)
        self._own = range(start, start + ctypes.sizeof(self._seqs), ctypes.sizeof(ctypes.c_int32))
        self._seq_addresses = (ctypes.c_size_t * capacity)(*self._own)
        self._shared: dict[int, Any] = {}  # by row of several sequences: the C array of these
        self.batch = C.llama_batch(
            n_tokens=0,
            token=ctypes.cast(self._tokens, _INTS),
            embd=None,
            pos=ctypes.cast(self._positions, _INTS),
            n_seq_id=ctypes.cast(self._seq_counts, _INTS),
            seq_id=ctypes.cast(self._seq_addresses, ctypes.POINTER(_INTS)),
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
            self._share_rows(batch)

    def want(self, row: int) -> None:
        """Also compute this row's logits."""
        self._wanted[row] = True

    def embed(self, hidden: Hidden) -> None:
        """Give each row, in order, one row of this writable array as an additional input."""
        self.batch.embd = FLOATS(ctypes.c_float.from_buffer(hidden.data))  # data_as() takes a µs more

    @contextmanager
    def embeddings(self, given: Embeddings, positions: Sequence[int]) -> Generator[None]:
        """Give each row an embedding in place of its token, until the with block ends.

        If the picture has a grid, rows also get its positions.

        positions: For each row, the position at which its picture begins.
        """
        self.batch.token = None
        self.embed(given.rows)
        if given.grid is not None:
            places = np.ascontiguousarray(given.grid.positions_from(given.first, positions))
            self.batch.pos = places.ctypes.data_as(_INTS)  # keeps the array
        try:
            yield
        finally:
            self.batch.token, self.batch.embd = ctypes.cast(self._tokens, _INTS), None
            self.batch.pos = ctypes.cast(self._positions, _INTS)

    def _share_rows(self, batch: Batch) -> None:
        """Set the sequences of rows that belong to several; first reset such rows of the previous batch."""
        for row in self._shared:
            self._seq_counts[row] = 1
            self._seq_addresses[row] = self._own[row]
        self._shared = {}
        for row, seqs in batch.shared.items():
            array = self._shared[row] = (ctypes.c_int32 * len(seqs))(*seqs)
            self._seq_counts[row] = len(seqs)
            self._seq_addresses[row] = ctypes.addressof(array)


class LlamaContext:
    """The part of Backend that one llama.cpp context implements. Owns the context until close()."""

    handle: Any = None
    keys: GraphKeys | None = None  # the keys that the context was made with

    def attach(self, model: LoadedModel, handle: Any, *, n_streams: int, overlaps: bool) -> None:
        """Take over `handle`, a context of the model. See LlamaOptions.n_streams and Backend.overlaps."""
        self.handle = handle
        self.overlaps = overlaps
        self.n_batch = int(C.llama_n_batch(handle))
        self.n_cells = int(C.llama_n_ctx(handle))
        self.memory = C.llama_get_memory(handle)
        self.rows = LlamaBatch(self.n_batch)
        self.threads = Threads(handle, fixed=overlaps)
        self.n_tail = int(C.llama_n_rs_seq(handle))
        # parts of prompts with more rows than this must not be recorded (cuda_graphs.py); 0: all may
        self.unlike_rows = MAX_DECODE_ROWS if self.keys else 0
        self.dropped: list[int] = []  # indices of the latest decode's logits that nobody wanted
        # (rows, wanted rows) of the latest parts of prompts: one without wanted rows, one with some
        self._shapes = {False: (0, 0), True: (0, 0)}
        self._trimmed_states = set[int]()  # sequences that use an earlier state until their next decode
        self._n_streams = n_streams
        self._n_vocab = model.n_vocab
        window = int(C.llama_model_n_swa(model.handle))
        self._windows = windows_of(model, handle) if window else None
        # tokens of the sliding window if no pin can keep passed cells, as in models with a state; 0: none
        self._unkept_window = 0 if self._windows else window
        self._only_cells = not has_state(model) and not window  # else a state may cover more than length()

    def decode(self, batch: Batch) -> Logits:
        logits = self.start(batch)
        if batch.meanwhile is not None and self.overlaps:
            batch.meanwhile()
        return logits()

    def start(self, batch: Batch) -> Callable[[], Logits]:
        n_wanted = sum(batch.wanted)
        self.rows.fill(batch)
        extra = self._to_differ(batch, n_wanted) if self.unlike_rows else ()
        for row in extra:
            self.rows.want(row)
        self._evaluate(batch)
        if not extra:
            self.dropped = []
            return functools.partial(self._last_logits, n_wanted)
        self.dropped = places = [sum(batch.wanted[:row]) + i for i, row in enumerate(extra)]
        return lambda: np.delete(self._last_logits(n_wanted + len(places)), places, axis=0)

    def _evaluate(self, batch: Batch) -> None:
        """Decode the batch, with which `rows` is filled already. Raises BackendError."""
        self.threads.choose_number(all_of_them=batch.stable)
        status = int(C.llama_decode(self.handle, self.rows.batch))
        if status:  # 1: there are too few cells
            reason = "the KV cache is full" if status == 1 else f"llama_decode returned {status}"
            raise BackendError(f"{reason} ({len(batch)} rows)")
        if self._trimmed_states:
            self._trimmed_states.difference_update(batch.seqs)
        if self._windows:
            self._windows.grow(batch)

    def read_rows(self, batch: Batch, given: Embeddings) -> None:
        self.rows.fill(batch)
        if given.together:
            C.llama_set_causal_attn(self.handle, False)
        try:
            with self.rows.embeddings(given, batch.positions):
                self._evaluate(batch)
        finally:
            if given.together:
                C.llama_set_causal_attn(self.handle, True)

    def _to_differ(self, batch: Batch, n_wanted: int) -> list[int]:
        """Return rows whose logits are computed only to prevent CUDA from recording this part of a prompt.

        CUDA records a part if it has the shape of the previous part with the same graph (cuda_graphs.py).
        Parts without wanted rows share one graph, parts with wanted rows share another. The additional rows
        change the shape.
        """
        n_rows, shapes, n_more = len(batch), self._shapes, 0
        if n_rows <= self.unlike_rows or n_wanted == n_rows:
            return []
        while n_more < 2 and shapes[n_wanted + n_more > 0] == (n_rows, n_wanted + n_more):
            n_more += 1
        shapes[n_wanted + n_more > 0] = n_rows, n_wanted + n_more
        return [i for i, wanted in enumerate(batch.wanted) if not wanted][:n_more]

    def _last_logits(self, n_rows: int) -> Logits:
        """Return the last decode's logits, (n_rows, vocab size). Waits for a GPU."""
        if not n_rows:
            return np.empty((0, self._n_vocab), dtype=np.float32)
        return view(C.llama_get_logits(self.handle), n_rows, self._n_vocab)

    def trim(self, seq: int, length: int) -> None:
        is_shorter = length < self.length(seq)
        if self._only_cells and not is_shorter:
            return  # else llama.cpp would look at every cell of the KV cache: 0.15 ms for 65,536 of them
        if not C.llama_memory_seq_rm(self.memory, seq, length, -1):
            raise BackendError("this model's sequences cannot be trimmed")
        if self._windows:
            self._windows.trim(seq, length)
        if not length:
            self._trimmed_states.discard(seq)
        elif is_shorter and self.n_tail:
            self._trimmed_states.add(seq)

    def length(self, seq: int) -> int:
        return int(C.llama_memory_seq_pos_max(self.memory, seq)) + 1

    def intact(self, seq: int, length: int) -> bool:
        window, held = self._unkept_window, self.length(seq)
        if not window or held == length:
            return True
        return held > length and C.llama_memory_seq_pos_min(self.memory, seq) <= max(0, length + 1 - window)

    def save(self, seq: int) -> bytes:
        size = int(C.llama_state_seq_get_size(self.handle, seq))
        data = _uninitialised(None, size)  # clearing and copying it would take longer than filling it
        start = ctypes.cast(ctypes.c_char_p(data), ctypes.POINTER(ctypes.c_uint8))
        if not size or int(C.llama_state_seq_get_data(self.handle, start, size, seq)) != size:
            raise BackendError(f"the state of sequence {seq} cannot be had")
        return self._windows.save(seq, self.length(seq), data) if self._windows else data

    def load(self, seq: int, data: bytes) -> None:
        if self._windows:
            self._windows.load(seq, data, functools.partial(self._load_state, seq))
        else:
            self._load_state(seq, data)

    def _load_state(self, seq: int, data: bytes) -> None:
        start = ctypes.cast(ctypes.c_char_p(data), ctypes.POINTER(ctypes.c_uint8))  # only read
        if int(C.llama_state_seq_set_data(self.handle, start, len(data), seq)) != len(data):
            raise BackendError("it does not fit this model, or the KV cache is full")

    def copy(self, source: int, target: int, start: int, end: int) -> None:
        for seq in self._trimmed_states & {source, target}:
            self._take_state(seq)
        if not self._n_streams:
            C.llama_memory_seq_cp(self.memory, source, target, start, end)
            if self._windows:
                self._windows.reach(target, end)
            return
        self.trim(target, 0)  # between streams llama.cpp copies whole ones only, and not at once
        self.load(target, self.save(source))
        self.trim(target, end)

    def state_bytes(self, seq: int) -> int:
        """Return the size in bytes of a sequence's state, without cells of attention layers."""
        return int(C.llama_state_seq_get_size_ext(self.handle, seq, _STATE))

    def _take_state(self, seq: int) -> None:
        """Save and load the state of a trimmed sequence, so that it can be copied.

        Trimming only makes the sequence use an earlier state; llama.cpp would still copy the latest state.
        """
        size = self.state_bytes(seq)
        data = (ctypes.c_uint8 * size)()
        if (
            int(C.llama_state_seq_get_data_ext(self.handle, data, size, seq, _STATE)) != size
            or int(C.llama_state_seq_set_data_ext(self.handle, data, size, seq, _STATE)) != size
        ):
            raise BackendError(f"the state of sequence {seq} cannot be had")
        self._trimmed_states.discard(seq)

    def shift(self, seq: int, start: int, end: int) -> None:
        if not C.llama_memory_seq_rm(self.memory, seq, start, end):
            raise BackendError("this model's sequences cannot be shifted")
        if self._windows:
            self._windows.cut(seq, start, end)
        C.llama_memory_seq_add(self.memory, seq, end, -1, start - end)

    def close(self) -> None:
        if self.handle:
            C.llama_free(self.handle)
            self.handle = None
        if self.keys:
            self.keys.close()
            self.keys = None


def has_state(model: LoadedModel) -> bool:
    """Return True if the model keeps a state beside its cells or instead of them."""
    return bool(C.llama_model_is_recurrent(model.handle) or C.llama_model_is_hybrid(model.handle))


def windows_of(model: LoadedModel, handle: Any) -> Windows | None:
    """Return the Windows that keep a context's cells after its sliding windows have passed them.

    None if the model's sequences can never be trimmed.
    """
    architecture = model.metadata("general.architecture")
    if has_state(model) or architecture in COMPRESSED:
        return None
    return Windows(handle, int(C.llama_model_n_swa(model.handle)), chunked=architecture in CHUNKED)


def view(floats: Any, n_rows: int, width: int) -> Logits:
    """Return a view of the floats that this pointer of llama.cpp points at, (n_rows, width)."""
    return _float_view(ctypes.addressof(floats.contents), n_rows, width)


@functools.lru_cache(64)  # the address of a context's rows changes only when it needs more room
def _float_view(address: int, n_rows: int, width: int) -> Logits:
    values: Any = (ctypes.c_float * (n_rows * width)).from_address(address)
    return np.frombuffer(values, dtype=np.float32).reshape(n_rows, width)


_STATE = C.LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY
_uninitialised = ctypes.pythonapi.PyBytes_FromStringAndSize  # its result must be filled at once
_uninitialised.restype = ctypes.py_object
_uninitialised.argtypes = (ctypes.c_void_p, ctypes.c_ssize_t)
