"""Read and write GGUF files tensor by tensor, so that a model of any size needs little memory."""

from __future__ import annotations

import os
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import gguf
import numpy as np
import numpy.typing as npt

from server.errors import StartupError
from server.flags import n_cores

Values: TypeAlias = npt.NDArray[np.float32]
Kind: TypeAlias = gguf.GGMLQuantizationType

THREADS = min(8, n_cores())  # each holds a tensor of the largest size at most

KINDS: dict[str, Kind] = {kind.name.lower(): kind for kind in (Kind.F32, Kind.F16, Kind.BF16, Kind.Q8_0)}


@dataclass(frozen=True, slots=True)
class PlannedTensor:
    """A tensor to write."""

    name: str
    shape: tuple[int, ...]  # in numpy's order, rows first
    kind: Kind
    values: Callable[[], Values]  # called once, just before writing

    @property
    def n_bytes(self) -> int:
        return int(np.prod(gguf.quant_shape_to_byte_shape(self.shape, self.kind), dtype=np.int64))


class GGUFSource:
    """An existing GGUF file, mapped into memory. Raises StartupError for other files."""

    def __init__(self, path: Path) -> None:
        if not path.is_file():
            raise StartupError(f"no model file at {path}: give the path of a GGUF file with --model")
        try:
            self._reader = gguf.GGUFReader(path)
        except ValueError as error:
            raise StartupError(f"{path} is not a complete GGUF file ({error})") from error
        self._tensors = {tensor.name: tensor for tensor in self._reader.tensors}

    @property
    def names(self) -> list[str]:
        """The tensors' names, in the file's order."""
        return list(self._tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the tensor's shape in numpy's order, rows first."""
        return tuple(int(n) for n in reversed(self._tensors[name].shape))

    def values(self, name: str) -> Values:
        """Return the tensor as a new array of F32, decoded if it is quantized."""
        tensor = self._tensors[name]
        decoded = gguf.dequantize(np.asarray(tensor.data), tensor.tensor_type)
        return np.array(decoded, dtype=np.float32).reshape(self.shape(name))

    def field(self, key: str) -> Any:
        """Return a metadata value; None if the file has no such key."""
        field = self._reader.get_field(key)
        return None if field is None else field.contents()

    def copy_metadata(self, writer: gguf.GGUFWriter, changes: Mapping[str, Any]) -> None:
        """Copy every key with its type, tokenizer and chat template included. Changed keys keep their type.

        New keys are added if their values are whole numbers.
        """
        for key, field in self._reader.fields.items():
            if key.startswith("GGUF.") or key == gguf.Keys.General.ARCHITECTURE:
                continue  # the writer makes these
            value = changes.get(key, field.contents())
            inner = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(key, value, field.types[0], sub_type=inner)
        for key, value in changes.items():
            if key not in self._reader.fields and isinstance(value, int):
                writer.add_uint32(key, value)


def kind_for(shape: tuple[int, ...], kind: Kind) -> Kind:
    """Return `kind` for matrices, F32 for vectors (norms, biases), as llama.cpp expects."""
    return kind if len(shape) > 1 else Kind.F32


def write(
    out: Path, source: GGUFSource, kind: Kind, tensors: Iterable[PlannedTensor], changes: Mapping[str, Any]
) -> None:
    """Write the tensors with the source's metadata, `changes` applied and the file type set to `kind`.

    The file appears under its name only when it is complete. Changed keys that the source lacks are added if
    their value is a whole number, else left out.
    """
    out.parent.mkdir(parents=True, exist_ok=True)
    planned = list(tensors)
    handle, aside = tempfile.mkstemp(prefix=f".{out.name}.", suffix=".part", dir=out.parent)
    os.close(handle)
    try:
        writer = gguf.GGUFWriter(aside, str(source.field(gguf.Keys.General.ARCHITECTURE)))
        with closing(writer):
            file_type = gguf.LlamaFileType[f"{'ALL' if kind == Kind.F32 else 'MOSTLY'}_{kind.name}"]
            source.copy_metadata(writer, {**changes, gguf.Keys.General.FILE_TYPE: int(file_type)})
            _write_tensors(writer, planned)
        os.chmod(aside, 0o644)
        os.replace(aside, out)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(aside)
        raise


def _write_tensors(writer: gguf.GGUFWriter, planned: list[PlannedTensor]) -> None:
    for tensor in planned:
        writer.add_tensor_info(
            tensor.name, tensor.shape, np.dtype(np.float32), tensor.n_bytes, raw_dtype=tensor.kind
        )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for values in _encoded(planned):
        writer.write_tensor_data(values)


def _encoded(planned: Sequence[PlannedTensor]) -> Iterator[npt.NDArray[Any]]:
    """Yield the tensors' data in order; other threads make the next ones ahead."""
    with ThreadPoolExecutor(THREADS) as pool:
        ahead: deque[Future[npt.NDArray[Any]]] = deque()
        for tensor in planned:
            ahead.append(pool.submit(_made, tensor))
            if len(ahead) > THREADS:
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()


def _made(tensor: PlannedTensor) -> npt.NDArray[Any]:
    return _encode(tensor.values(), tensor.kind)


def _encode(values: Values, kind: Kind) -> npt.NDArray[Any]:
    if kind != Kind.BF16:
        return gguf.quantize(values, kind)
    # As the package does it (to nearest, ties to even) but without its loop over groups of 16 rows
    bits = values.view(np.uint32)
    return ((bits + (np.uint32(0x7FFF) + ((bits >> 16) & np.uint32(1)))) >> 16).astype(np.uint16)
