"""Read a model's architecture and its tensors' names and sizes from its files, without loading it."""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from server.llama.devices import GGML
from server.llama.options import HOST, TensorPlace
from server.llama.parts import parts

ASSISTANTS = ("gemma4-assistant",)  # architectures of models that read the KV cache of their target
EAGLE3 = "eagle3"  # the architecture of EAGLE-3 heads
DFLASH = "dflash"  # the architecture of DFlash and DSpark heads
FIRST_LAYER = "blk.0.attn_norm.weight"  # missing in files with a prediction block but without its model
_U32, _TEXT = 4, 8  # GGUF_TYPE_UINT32, GGUF_TYPE_STRING
_HALF = (1, 30)  # GGML_TYPE_F16, GGML_TYPE_BF16
MATRIX = 2**20  # minimum bytes of a layer's matrix: vectors and tables of positions are smaller


class _GGUFParams(ctypes.Structure):
    """gguf_init_params, here always without memory for tensors."""

    _fields_ = [("no_alloc", ctypes.c_bool), ("ctx", ctypes.c_void_p)]


def architecture(path: Path) -> str | None:
    """Return general.architecture of a model's metadata; None if llama.cpp cannot read the file.

    Raises StartupError if the file is missing, or is no GGUF file.
    """
    with _open_metadata(parts(path)[0]) as file:
        return _text_of(file, "general.architecture") if file else None


def trained_context(path: Path, overrides: Mapping[str, object]) -> int | None:
    """Return the context length, in tokens, with which a model was trained.

    Args:
        path: The GGUF file.
        overrides: Values that replace metadata, by their keys.

    Returns:
        The length; 0 if the metadata do not contain it, None if llama.cpp cannot read the file.

    Raises:
        StartupError: The file is missing, or is no GGUF file.
    """
    with _open_metadata(parts(path)[0]) as file:
        if not file:
            return None
        key = f"{_text_of(file, 'general.architecture')}.context_length"
        found = overrides.get(key) or _number_of(file, key)
        return int(found) if isinstance(found, int) else 0


@contextmanager
def _open_metadata(path: Path) -> Generator[ctypes.c_void_p]:
    """Read a file's metadata; yield their handle, which is false if llama.cpp cannot read the file."""
    GGML.gguf_init_from_file.restype = ctypes.c_void_p
    file = ctypes.c_void_p(GGML.gguf_init_from_file(os.fsencode(path), _GGUFParams(True, None)))
    try:
        yield file
    finally:
        if file:
            GGML.gguf_free(file)


def _key_of(file: ctypes.c_void_p, key: str, kind: int) -> ctypes.c_int64 | None:
    """Return the index of this key in the metadata, None if it is missing or not of type `kind`."""
    GGML.gguf_find_key.restype = ctypes.c_int64
    GGML.gguf_get_kv_type.restype = ctypes.c_int
    place = ctypes.c_int64(GGML.gguf_find_key(file, key.encode()))
    return place if place.value >= 0 and GGML.gguf_get_kv_type(file, place) == kind else None


def _text_of(file: ctypes.c_void_p, key: str) -> str | None:
    GGML.gguf_get_val_str.restype = ctypes.c_char_p
    place = _key_of(file, key, _TEXT)
    return None if place is None else GGML.gguf_get_val_str(file, place).decode(errors="replace")


def _number_of(file: ctypes.c_void_p, key: str) -> int:
    GGML.gguf_get_val_u32.restype = ctypes.c_uint32
    place = _key_of(file, key, _U32)
    return 0 if place is None else int(GGML.gguf_get_val_u32(file, place))


def tensors(path: Path) -> dict[str, int]:
    """Return the bytes of each tensor of all parts, by name. Raises StartupError if a part is missing."""
    return {name: n_bytes for name, _, n_bytes in _list_tensors(path)}


def has_half_matrices(path: Path) -> bool:
    """Return True if a model has matrices of 16-bit floats. Raises StartupError if a part is missing."""
    return any(kind in _HALF and n_bytes >= MATRIX for _, kind, n_bytes in _list_tensors(path))


def _list_tensors(path: Path) -> Iterator[tuple[str, int, int]]:
    """Yield name, ggml_type and bytes of each tensor."""
    GGML.gguf_get_n_tensors.restype = ctypes.c_int64
    GGML.gguf_get_tensor_name.restype = ctypes.c_char_p
    GGML.gguf_get_tensor_type.restype = ctypes.c_int
    GGML.gguf_get_tensor_size.restype = ctypes.c_size_t
    for part in parts(path):
        with _open_metadata(part) as file:
            n_tensors = int(GGML.gguf_get_n_tensors(file)) if file else 0  # loading it will say why
            for i in map(ctypes.c_int64, range(n_tensors)):
                name = GGML.gguf_get_tensor_name(file, i).decode()
                yield name, int(GGML.gguf_get_tensor_type(file, i)), int(GGML.gguf_get_tensor_size(file, i))


def has_block(path: Path) -> bool:
    """Return True if a model's files contain a prediction block. Raises StartupError if a part is missing."""
    return any(".nextn." in name for name in tensors(path))


def is_block(path: Path) -> bool:
    """Return True if a model's files contain a prediction block, but not its target.

    Raises StartupError if a part is missing.
    """
    names = tensors(path)
    return FIRST_LAYER not in names and any(".nextn." in name for name in names)


def is_whole(path: Path) -> bool:
    """Return True if a one-part file exists and is as long as its tensors require."""
    if not path.is_file():
        return False
    for function in (GGML.gguf_get_data_offset, GGML.gguf_get_tensor_offset, GGML.gguf_get_tensor_size):
        function.restype = ctypes.c_size_t
    GGML.gguf_get_n_tensors.restype = ctypes.c_int64
    with _open_metadata(path) as file:
        if not file:
            return False
        last = ctypes.c_int64(GGML.gguf_get_n_tensors(file) - 1)
        end = GGML.gguf_get_data_offset(file)
        if last.value >= 0:
            end += GGML.gguf_get_tensor_offset(file, last) + GGML.gguf_get_tensor_size(file, last)
        return path.stat().st_size >= end


def unmatched(tensors: Sequence[str], places: Sequence[TensorPlace]) -> list[str]:
    """Return the patterns of these rules that match no tensor's name."""
    return [one.pattern for one in places if not any(re.search(one.pattern, name) for name in tensors)]


def on_host(path: Path, places: Sequence[TensorPlace]) -> int:
    """Return the bytes of the tensors that these rules put into host memory. Raises StartupError."""
    if not places:
        return 0
    total = 0
    for name, n_bytes in tensors(path).items():
        first = next((one for one in places if re.search(one.pattern, name)), None)
        total += n_bytes if first and first.buffer == HOST else 0
    return total
