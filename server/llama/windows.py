"""Make sequences with sliding windows trimmable: keep, save and load the cells that a window has passed.

llama.cpp overwrites a cell that the window of its sequence has passed, and omits it from a saved state. But
it never overwrites a cell that belongs to two sequences. So each sequence has a pin: a second sequence with
the same cells. A saved state consists of llama.cpp's state, which covers only the last window, and of one
part for each earlier window.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Iterator
from typing import Any

from server.errors import BackendError
from server.llama.backend import Batch
from server.llama.library import C
from server.llama.options import MAX_SEQS

MOST_SEQS = (MAX_SEQS - 1) // 2  # maximum sequences of a context: each has a pin, and one more is the dock
CHUNKED = ("llama4",)  # architectures whose window is a token's chunk of the text, not the tokens before it
_PARTIAL = C.LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY  # save or load only layers with a window
_BYTES = ctypes.POINTER(ctypes.c_uint8)
_SIZE = struct.Struct("<Q")
_MAGIC = b"duo.windows.1\n\0\0"


class Windows:
    """Keeps cells that a sliding window has passed, so that sequences can be trimmed and continued."""

    def __init__(self, handle: Any, window: int, *, chunked: bool) -> None:
        """Keep cells for a context that has one spare sequence, and at most MOST_SEQS other sequences.

        Args:
            handle: The llama.cpp context.
            window: Number of tokens to which a layer with a window attends.
            chunked: True if a window begins at a multiple of `window`.
        """
        self._handle, self._memory = handle, C.llama_get_memory(handle)
        self._window, self._chunked = window, chunked
        self._dock = int(C.llama_n_seq_max(handle)) - 1  # the sequence for a part that is saved or loaded
        self._n_kept = [0] * self._dock  # leading positions that the pin of each sequence shares

    def grow(self, batch: Batch) -> None:
        """Keep the cells of an evaluated batch before the window passes them."""
        for seq, position in dict(zip(batch.seqs, batch.positions, strict=True)).items():
            self.reach(seq, position + 1)

    def reach(self, seq: int, length: int) -> None:
        """Keep the cells of a sequence that now has this length, before its window passes unkept cells."""
        if 2 * (length - self._n_kept[seq]) >= self._window:
            self._keep_cells(seq, length)

    def _keep_cells(self, seq: int, length: int) -> None:
        """Make the pin of `seq` share its first `length` positions.

        The pin is a second sequence with the same cells, which llama.cpp therefore does not overwrite.
        """
        C.llama_memory_seq_cp(self._memory, seq, self._pin_of(seq), self._n_kept[seq], length)
        self._n_kept[seq] = length

    def trim(self, seq: int, length: int) -> None:
        """Remove positions >= length from the pin, the second sequence that keeps the cells of `seq`."""
        if self._n_kept[seq] > length:
            C.llama_memory_seq_rm(self._memory, self._pin_of(seq), length, -1)
            self._n_kept[seq] = length

    def cut(self, seq: int, start: int, end: int) -> None:
        """Remove positions start to end from the sequence's pin, which shares its cells.

        Call it before the sequence's later positions move to `start`.
        """
        n_kept = self._n_kept[seq]
        if n_kept > start:
            C.llama_memory_seq_rm(self._memory, self._pin_of(seq), start, end)
            self._n_kept[seq] = max(start, n_kept - (end - start))

    def save(self, seq: int, length: int, state: bytes) -> bytes:
        """Return a sequence's whole state: llama.cpp's `state`, and the cells that the window has passed.

        Args:
            seq: The sequence.
            length: Number of its tokens.
            state: llama.cpp's state of it, which lacks the cells that the window has passed.

        Raises:
            BackendError: llama.cpp gives no state.
        """
        parts = [state, *self._earlier_windows(seq, length)]
        return b"".join((_MAGIC, *(piece for part in parts for piece in (_SIZE.pack(len(part)), part))))

    def load(self, seq: int, data: bytes, load_state: Callable[[bytes], None]) -> None:
        """Load what save() returned into an empty sequence.

        Args:
            seq: The sequence.
            data: What save() returned.
            load_state: Called with the state that save() was given, to load it.

        Raises:
            BackendError: The data belong to another model or version, or there are too few cells.
        """
        state, *earlier = _split_parts(data)
        load_state(state)
        self._keep_cells(seq, int(C.llama_memory_seq_pos_max(self._memory, seq)) + 1)
        for part in earlier:
            try:
                self._dock_part(part)
                for target in (seq, self._pin_of(seq)):
                    C.llama_memory_seq_cp(self._memory, self._dock, target, -1, -1)
            finally:
                C.llama_memory_seq_rm(self._memory, self._dock, -1, -1)

    def _dock_part(self, part: bytes) -> None:
        source = ctypes.cast(ctypes.c_char_p(part), _BYTES)  # only read
        size = len(part)
        if C.llama_state_seq_set_data_ext(self._handle, source, size, self._dock, _PARTIAL) != size:
            raise BackendError("it does not fit this model, or the KV cache is full")

    def _earlier_windows(self, seq: int, length: int) -> Iterator[bytes]:
        """Yield the states of the windows before the last one, from last to first."""
        end = self._window_start(length)
        while end > 0:
            begin = self._window_start(end)
            C.llama_memory_seq_cp(self._memory, seq, self._dock, begin, end)
            try:
                yield self._dock_window()
            finally:
                C.llama_memory_seq_rm(self._memory, self._dock, -1, -1)
            end = begin

    def _dock_window(self) -> bytes:
        """Return the state of those layers of the spare sequence (dock) that have a window."""
        size = int(C.llama_state_seq_get_size_ext(self._handle, self._dock, _PARTIAL))
        data = ctypes.create_string_buffer(size)
        target = ctypes.cast(data, _BYTES)
        if C.llama_state_seq_get_data_ext(self._handle, target, size, self._dock, _PARTIAL) != size:
            raise BackendError("the state of a window cannot be had")
        return data.raw

    def _window_start(self, end: int) -> int:
        """Return the first position of the window that ends before position `end`."""
        return (end - 1) // self._window * self._window if self._chunked else max(0, end - self._window)

    def _pin_of(self, seq: int) -> int:
        return self._dock + 1 + seq


def _split_parts(data: bytes) -> list[bytes]:
    at = len(_MAGIC)
    if data[:at] != _MAGIC:
        raise BackendError("it was saved by another version")
    parts = list[bytes]()
    while at < len(data):
        (size,) = _SIZE.unpack_from(data, at) if len(data) - at >= _SIZE.size else (len(data),)
        at += _SIZE.size + size
        if at > len(data):
            raise BackendError("it is not complete")
        parts.append(data[at - size : at])
    return parts
